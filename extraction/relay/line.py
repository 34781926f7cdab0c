"""Is the line to the relay cut, since when, and has it been said."""

from __future__ import annotations

import logging
import time
from typing import Final

log = logging.getLogger(__name__)

CUT_SECONDS: Final = 3.0
"""A relay answers about every second: one that is silent for so long is cut off."""
SAY_SECONDS: Final = 15.0


class Line:
    """What is known of the way to one relay. Safe to use from threads."""

    def __init__(self, url: str) -> None:
        self.trouble = "no answer yet"
        """What went wrong last."""
        self._url = url
        self._good_at = time.monotonic()
        self._said_at = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether the relay has been silent for too long."""
        return self._silent_seconds > CUT_SECONDS

    @property
    def cut_seconds(self) -> float:
        """For how long the relay has been silent; 0 while the line is not cut."""
        return self._silent_seconds if self.is_cut else 0.0

    def good(self) -> None:
        """Take note of an answer."""
        if self._said_at:
            log.info("relay %s answers again, after %.0f s", self._url, self._silent_seconds)
        self._said_at = 0.0
        self._good_at = time.monotonic()

    def bad(self, error: Exception) -> None:
        """Take note of a request without an answer, and say so now and then."""
        self.trouble = str(error)
        now = time.monotonic()
        if self.is_cut and now - self._said_at > SAY_SECONDS:
            self._said_at = now
            log.warning(
                "relay %s has not answered for %.0f s: %s", self._url, self._silent_seconds, error
            )

    @property
    def _silent_seconds(self) -> float:
        return time.monotonic() - self._good_at
