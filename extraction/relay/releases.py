"""What the client gave back or discarded here, done at the server too: sent until acknowledged."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from extraction.relay.wire import RelayAwayError, RelayRefusedError, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from extraction.spool import RequestId

log = logging.getLogger(__name__)

LARGEST_BATCH: Final = 1000
PAUSE_SECONDS: Final = 0.5
JOIN_SECONDS: Final = 0.5
_REMEMBERED: Final = 20_000
"""Released ids that are remembered: a listing from before the release may still come."""


class Releases:
    """A queue to the relay. Safe to use from threads; nothing here waits for the line but `flush`."""

    def __init__(self, wire: Callable[[], Wire]) -> None:
        self._wire = wire()
        self._changed = threading.Condition()
        self._pending: dict[RequestId, str] = {}
        self._runs: set[str] = set()
        self._keep_bytes: int | None = None
        self._done: OrderedDict[RequestId, None] = OrderedDict()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="relay-releases")
        self._thread.start()

    def __contains__(self, rid: object) -> bool:
        """Tell whether a request was released here, whatever the relay still shows."""
        return rid in self._pending or rid in self._done

    def __len__(self) -> int:
        """Count what is not acknowledged."""
        return len(self._pending) + len(self._runs) + (self._keep_bytes is not None)

    def give_back(self, rid: RequestId) -> None:
        """Let the server reuse a dump's file."""
        self._add(rid, "give_back")

    def discard(self, rid: RequestId) -> None:
        """Remove all that is there of a request."""
        self._add(rid, "discard")

    def discard_run(self, run: str) -> None:
        """Remove all that is there of a run."""
        with self._changed:
            self._runs.add(run)
            self._changed.notify_all()

    def trim_free(self, keep_bytes: int) -> None:
        """Have free files removed until they hold at most so much."""
        with self._changed:
            known = self._keep_bytes
            self._keep_bytes = keep_bytes if known is None else min(known, keep_bytes)
            self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all is acknowledged; tell whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not len(self), timeout_seconds)

    def drop(self) -> int:
        """Forget what is not acknowledged; returns how many that was."""
        with self._changed:
            count = len(self)
            self._pending.clear()
            self._runs.clear()
            self._keep_bytes = None
            return count

    def close(self) -> None:
        """Stop sending."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        self._wire.close()
        self._thread.join(JOIN_SECONDS)

    def _add(self, rid: RequestId, what: str) -> None:
        with self._changed:
            self._pending.setdefault(rid, what)
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self) or self._stop.is_set())
                if self._stop.is_set():
                    return
                batch = dict(list(self._pending.items())[:LARGEST_BATCH])
                runs, keep_bytes = set(self._runs), self._keep_bytes
            try:
                self._wire.ask("POST", "/v1/release", _body(batch, runs, keep_bytes))
            except (RelayAwayError, RelayRefusedError) as error:
                # The mirror says that the line is cut, and opens the session again if it ran out.
                log.debug("%d releases wait: %s", len(self), error)
                self._stop.wait(PAUSE_SECONDS)
            else:
                self._acknowledged(batch, runs, keep_bytes)

    def _acknowledged(
        self, batch: dict[RequestId, str], runs: set[str], keep_bytes: int | None
    ) -> None:
        with self._changed:
            if self._keep_bytes == keep_bytes:
                self._keep_bytes = None
            for rid in batch:
                self._done[rid] = None
                self._pending.pop(rid, None)
            while len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
            self._runs -= runs
            self._changed.notify_all()


def _body(batch: dict[RequestId, str], runs: set[str], keep_bytes: int | None) -> dict[str, object]:
    def of(kind: str) -> list[str]:
        return [str(rid) for rid, what in batch.items() if what == kind]

    return {
        "give_back": of("give_back"),
        "discard": of("discard"),
        "discard_runs": sorted(runs),
        "keep_free": keep_bytes,
    }
