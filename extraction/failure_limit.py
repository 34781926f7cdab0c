"""When to stop a run because too many samples fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hsstore.errors import HsstoreError

if TYPE_CHECKING:
    from hsstore.plausible import Fault


class TooManyFailuresError(HsstoreError):
    """More samples failed than the user allows; the message has the last reason."""


class FailureLimit:
    """Counts failed samples, in all and in a row.

    Parameters
    ----------
    allowed : int
        Failed samples in all that do not stop the run.
    in_row : int
        Failed samples in a row that stop it.
    """

    def __init__(self, allowed: int, in_row: int) -> None:
        self._allowed = allowed
        self._allowed_in_row = in_row - 1
        self._failed = 0
        self._in_row = 0

    def good(self) -> None:
        """Count a sample that was extracted."""
        self._in_row = 0

    def bad(self, sample: int, fault: Fault) -> None:
        """Count a sample that was given up.

        Raises
        ------
        TooManyFailuresError
        """
        self._failed += 1
        self._in_row += 1
        if self._failed > self._allowed or self._in_row > self._allowed_in_row:
            raise TooManyFailuresError(
                f"{self._failed} samples failed, {self._in_row} in a row (allowed are "
                f"{self._allowed} in all, {self._allowed_in_row} in a row); the last one, sample "
                f"{sample}: {fault.message}. Mend the cause and run again with --retry-failed"
            )
