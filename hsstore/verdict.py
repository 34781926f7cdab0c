"""What can be the matter with a run. Apart from the reports: help must not load their types."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What is the matter with a run, as the doctor and the watchdog say it. A closed list."""

    FINISHED = "finished"
    """Every sample is complete or given up, and nothing runs."""
    HEALTHY = "healthy"
    """It makes progress, or the server computes: slow is not stalled."""
    WAITING_FOR_SERVER = "waiting-for-server"
    """The server is starting, or not there yet; the run goes on by itself when it comes."""
    SERVER_DOWN = "server-down"
    """No server process holds the spool, or its port refuses."""
    SERVER_HUNG = "server-hung"
    """The server is there, and neither computes nor answers."""
    DUMP_MISSING = "dump-missing"
    """The server answered or is idle, and what was asked for did not appear in the spool."""
    DUMP_UNREAD = "dump-unread"
    """Finished dumps lie in the spool, and the client does not take them."""
    SPOOL_FULL = "spool-full"
    """The shared memory has no room for the next dump."""
    OUTPUT_FULL = "output-full"
    """The output file system has no bytes, inodes or quota left."""
    OUTPUT_BLOCKED = "output-blocked"
    """The output file system does not answer, or refuses every write."""
    CLIENT_DEAD = "client-dead"
    """Samples are pending, and no process works on them."""
    CLIENT_STUCK = "client-stuck"
    """The client's process is there and stands still: stopped, a deadlock, an endless loop."""
    PLAN_MISMATCH = "plan-mismatch"
    """The store and the server do not belong together, or the store cannot be read."""

    @property
    def exit_code(self) -> int:
        """What `hsstore doctor` returns: below 20 there is nothing to do."""
        return _VERDICT_CODES[self]


_VERDICT_CODES = {
    Verdict.FINISHED: 0,
    Verdict.HEALTHY: 10,
    Verdict.WAITING_FOR_SERVER: 11,
    Verdict.SERVER_DOWN: 20,
    Verdict.SERVER_HUNG: 21,
    Verdict.DUMP_MISSING: 22,
    Verdict.DUMP_UNREAD: 23,
    Verdict.SPOOL_FULL: 24,
    Verdict.OUTPUT_FULL: 25,
    Verdict.OUTPUT_BLOCKED: 26,
    Verdict.CLIENT_DEAD: 27,
    Verdict.CLIENT_STUCK: 28,
    Verdict.PLAN_MISMATCH: 29,
}
