"""Who has what this worker waits for, and whether anything is heard of them."""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from hsstore.errors import InterruptedRunError
from hsstore.liveness import ON_DEMAND, SILENT_SECONDS
from hsstore.subset import to_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from hsstore.claims import Claim, Claims

log = logging.getLogger(__name__)

SAY_SECONDS = 60.0
SHOWN_RANGES = 20
LOOKS_AT_ONCE = 16


@dataclass(slots=True)
class _Peer:
    """A run that has spans with pending samples."""

    owner: Claim
    silent_seconds: float
    spans: list[int] = field(default_factory=list)
    samples: int = 0

    @override
    def __str__(self) -> str:
        return f"{self.owner.who} has {self.samples:,} pending samples in {len(self.spans)} spans"


class Peers:
    """The other runs on a store, seen by one that has nothing left to do.

    Parameters
    ----------
    patience_seconds : float
        After so long without a new bit, and without a sign of life of any that still has something
        to do, they are not waited for any more; 0: for ever.
    """

    def __init__(self, claims: Claims, patience_seconds: float) -> None:
        self._claims = claims
        self._patience_seconds = patience_seconds or math.inf
        self._left = -1
        self._heard_at = self._said_at = -math.inf

    def look(self, pending: Mapping[int, npt.NDArray[np.int64]]) -> str:
        """Look at those who have the pending samples, given by span; return what to tell of them.

        Raises
        ------
        InterruptedRunError
            Nothing is heard of them any more.
        RefusedError
            A claim is damaged.
        """
        peers = self._find(pending)
        now = time.monotonic()
        left = sum(map(len, pending.values()))
        alive = not peers or any(peer.silent_seconds < SILENT_SECONDS for peer in peers)
        if alive or left != self._left:
            self._heard_at = now
        self._left = left
        text = "; ".join(map(str, peers))
        self._say(peers, text, now)
        if now - self._heard_at > self._patience_seconds:
            raise InterruptedRunError(self._despair(text, pending))
        return f"waiting: {text}"

    def _find(self, pending: Mapping[int, npt.NDArray[np.int64]]) -> list[_Peer]:
        found: dict[str, _Peer] = {}
        with ThreadPoolExecutor(LOOKS_AT_ONCE) as threads:  # an object store takes long to answer
            owners = list(threads.map(self._claims.owner, pending))
        for (span, samples), owner in zip(pending.items(), owners, strict=True):
            if owner is None:  # given back this moment
                continue
            if owner.run not in found:
                found[owner.run] = _Peer(owner, self._claims.others.silence_seconds(owner))
            found[owner.run].spans.append(span)
            found[owner.run].samples += len(samples)
        return list(found.values())

    def _say(self, peers: list[_Peer], text: str, now: float) -> None:
        if not peers or now - self._said_at < SAY_SECONDS:
            return
        self._said_at = now
        log.info("nothing is left for this worker; waiting: %s", text)
        for peer in peers:
            if peer.silent_seconds >= SILENT_SECONDS and not self._claims.others.reach(peer.owner):
                sign = self._claims.others.last_sign(peer.owner)
                log.warning("%s may be dead. %s. %s", peer.owner.who, sign, ON_DEMAND)

    def _despair(self, text: str, pending: Mapping[int, npt.NDArray[np.int64]]) -> str:
        ranges = to_ranges(np.sort(np.concatenate(list(pending.values()))))
        names = [str(first) if end == first + 1 else f"{first}-{end - 1}" for first, end in ranges]
        more = f" and {len(names) - SHOWN_RANGES} more ranges" if len(names) > SHOWN_RANGES else ""
        return (
            f"for {self._patience_seconds:.0f} s (--stall-abort) nothing was heard of other workers "
            f"that have the rest: {text}. Pending are samples {', '.join(names[:SHOWN_RANGES])}{more}. "
            f"All else is done. {ON_DEMAND}"
        )
