"""The spool and the server: full, unread, loading, down, hung, and dumps that do not come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extraction.diagnosis.evidence import (
    NOT_ASKED,
    ProcessEvidence,
    ServerEvidence,
    SpoolEvidence,
)
from hsstore.verdict import Verdict
from tests.diagnosis.given import (
    HEALTHY,
    MAIN,
    QUIET,
    SPOOL,
    STANDING,
    STATUS,
    Given,
    check,
    dumps,
    names,
    stage,
    status,
)

CASES: list[Given] = [
    (
        "a spool of another user, and a server that answers",
        replace(HEALTHY, spool=SpoolEvidence("/dev/shm/s", unreadable="mode 700"), worker=None),
        Verdict.HEALTHY,
        "",
    ),
    (
        "no room for a dump",
        replace(QUIET, spool=replace(SPOOL, headroom_bytes=0, reusable_bytes=0)),
        Verdict.SPOOL_FULL,
        "",
    ),
    (
        "nothing but refusals of a full spool",
        replace(
            QUIET, status=status(in_flight=0, only_busy="full: 9 bytes needed, 5 may be taken")
        ),
        Verdict.SPOOL_FULL,
        "9 bytes needed, 5 may be taken",
    ),
    (
        "nothing but refusals for want of buffers",
        replace(QUIET, status=status(in_flight=1, only_busy="overrun: 3 chunks wait")),
        Verdict.DUMP_MISSING,
        "overrun: 3 chunks wait",
    ),
    (
        "unread dumps",
        replace(
            QUIET,
            spool=replace(SPOOL, finished=dumps(40, 41, 42)),
            status=status(stages=(stage("give-back", items=1),)),
        ),
        Verdict.DUMP_UNREAD,
        "2 finished dumps",
    ),
    (
        "unread dumps before anything was ever appended",
        replace(QUIET, spool=replace(SPOOL, finished=dumps(40, 41)), status=status()),
        Verdict.DUMP_UNREAD,
        "2 finished dumps",
    ),
    (
        "dumps that wait for their block's commit are not unread",
        replace(
            QUIET,
            spool=replace(STANDING, finished=dumps(40, 41)),
            status=status(stages=(stage("give-back", items=2),)),
        ),
        Verdict.SERVER_HUNG,
        "",
    ),
    # The server.
    (
        "announced, and not healthy yet",
        replace(
            QUIET,
            status=status(phase="waiting for server", in_flight=0),
            spool=STANDING,
            server=ServerEvidence("http://s", "refused"),
        ),
        Verdict.WAITING_FOR_SERVER,
        "does not answer /health yet",
    ),
    (
        "it hangs in the handshake",
        replace(QUIET, status=status(phase="handshake", in_flight=1), spool=STANDING),
        Verdict.SERVER_HUNG,
        "",
    ),
    (
        "stopped, as the supervisor sees it without asking",
        replace(
            QUIET,
            spool=STANDING,
            server=ServerEvidence(
                "http://s",
                NOT_ASKED,
                process=ProcessEvidence(
                    20, "server", alive=True, threads=(replace(MAIN, state="T"),)
                ),
            ),
        ),
        Verdict.SERVER_HUNG,
        "process 20 is stopped",
    ),
    (
        "not asked is no bad health",
        replace(
            QUIET,
            spool=STANDING,
            server=ServerEvidence("http://s", NOT_ASKED),
            status=status(stages=(stage("answered", items=8),)),
        ),
        Verdict.DUMP_MISSING,
        "8 requests",
    ),
    (
        "a client in another container is not dead",
        replace(QUIET, worker=None, spool=STANDING),
        Verdict.SERVER_HUNG,
        "",
    ),
    (
        "loading",
        replace(
            QUIET, status=status(phase="waiting for server"), spool=replace(SPOOL, server=None)
        ),
        Verdict.WAITING_FOR_SERVER,
        "loading",
    ),
    (
        "not there yet",
        replace(
            HEALTHY,
            status=replace(STATUS, phase="waiting for server"),
            spool=replace(SPOOL, server=None, server_lock_held=False),
        ),
        Verdict.WAITING_FOR_SERVER,
        "no server",
    ),
    (
        "not there for too long",
        replace(
            QUIET,
            status=status(phase="waiting for server"),
            spool=replace(SPOOL, server=None, server_lock_held=False),
        ),
        Verdict.SERVER_DOWN,
        "held by no server",
    ),
    (
        "killed",
        replace(QUIET, spool=replace(STANDING, server_lock_held=False)),
        Verdict.SERVER_DOWN,
        "held by no server",
    ),
    (
        "its port refuses",
        replace(QUIET, spool=STANDING, server=ServerEvidence("http://s", "refused")),
        Verdict.SERVER_DOWN,
        "refuses",
    ),
    (
        "no answer",
        replace(QUIET, spool=STANDING, server=ServerEvidence("http://s", "no answer")),
        Verdict.SERVER_HUNG,
        "no answer",
    ),
    (
        "stopped",
        replace(
            QUIET,
            spool=STANDING,
            server=ServerEvidence(
                "http://s",
                "no answer",
                process=ProcessEvidence(
                    20, "server", alive=True, threads=(replace(MAIN, state="T"),)
                ),
            ),
        ),
        Verdict.SERVER_HUNG,
        "process 20 is stopped",
    ),
    (
        "healthy by its own word, and nothing computed",
        replace(QUIET, spool=STANDING),
        Verdict.SERVER_HUNG,
        "",
    ),
    (
        "a forward that takes long, the first one of all",
        replace(QUIET, spool=replace(SPOOL, heartbeat=None)),
        Verdict.SERVER_HUNG,
        "8 requests wait",
    ),
    (
        "all answered, no dump",
        replace(QUIET, spool=STANDING, status=status(stages=(stage("answered", items=8),))),
        Verdict.DUMP_MISSING,
        "8 requests",
    ),
    (
        "nothing explains it",
        replace(QUIET, status=status(in_flight=0)),
        Verdict.CLIENT_STUCK,
        "look well",
    ),
]


@pytest.mark.parametrize("given", CASES, ids=names(CASES))
def test_spool_and_server_are_told_apart(given: Given) -> None:
    check(given)
