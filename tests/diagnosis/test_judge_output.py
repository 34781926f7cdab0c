"""The output file system: what shows that it does not answer, or refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extraction.diagnosis.evidence import (
    OutputEvidence,
    ThreadEvidence,
)
from hsstore.verdict import Verdict
from tests.diagnosis.given import (
    DEAD,
    FUSE_WAIT,
    HEALTHY,
    IN_WRITE,
    MAIN,
    OUTPUT,
    QUIET,
    STANDING,
    STATUS,
    STORE,
    Given,
    check,
    names,
    stage,
    status,
    worker,
)

CASES: list[Given] = [
    (
        "a thread in D in a file of the store",
        replace(QUIET, worker=worker(MAIN, IN_WRITE)),
        Verdict.OUTPUT_BLOCKED,
        "c.3.partial on /data (nfs4, box:/x)",
    ),
    (
        "a store that is given by a link: the kernel names its true path",
        replace(
            QUIET,
            worker=worker(MAIN, replace(IN_WRITE, file="/true/s.zarr/c.1", mount=None)),
            status=status(store_real="/true/s.zarr"),
        ),
        Verdict.OUTPUT_BLOCKED,
        "/true/s.zarr/c.1",
    ),
    (
        "a FUSE call that names no file",
        replace(
            QUIET,
            worker=worker(MAIN, FUSE_WAIT),
            status=status(stages=(stage("disk:rename", "/data/s.zarr/c.1"),)),
        ),
        Verdict.OUTPUT_BLOCKED,
        "rename of /data/s.zarr/c.1",
    ),
    (
        "D without a wait channel: not root",
        replace(
            QUIET,
            worker=worker(MAIN, ThreadEvidence(11, "python", "D", unreadable="not shown")),
            output=None,
        ),
        Verdict.OUTPUT_BLOCKED,
        "in state D",
    ),
    (
        "nothing but the run's own word: no /proc at all",
        replace(
            QUIET,
            worker=worker(unreadable="its threads unreadable"),
            status=status(stages=(stage("disk:fsync", "/data/s.zarr/c.1"),)),
            output=None,
        ),
        Verdict.OUTPUT_BLOCKED,
        "fsync of /data/s.zarr/c.1",
    ),
    (
        "a request for an object that has no answer",
        replace(
            QUIET,
            status=status(stages=(stage("disk:write", "s3://b/s.zarr/complete/c.1"),)),
            output=OutputEvidence("s3://b/s.zarr"),
        ),
        Verdict.OUTPUT_BLOCKED,
        "the object store is slow, or does not answer: write of s3://b/s.zarr/complete/c.1",
    ),
    (
        "a request for the data that has no answer",
        replace(
            QUIET,
            status=status(stages=(stage("disk:read", "s3://b/chats.jsonl"),)),
        ),
        Verdict.CLIENT_STUCK,
        "waits for an object store that does not answer: read of s3://b/chats.jsonl",
    ),
    (
        "an object store that hides from the doctor, and not from the run that stands",
        replace(
            QUIET,
            spool=STANDING,
            output=OutputEvidence("s3://b/s.zarr", read_answered=False),
        ),
        Verdict.SERVER_HUNG,
        "",
    ),
    (
        "one that refuses the doctor, and not the run",
        replace(
            QUIET,
            spool=STANDING,
            output=OutputEvidence("s3://b/s.zarr", read_answered=True, error="no credentials"),
        ),
        Verdict.SERVER_HUNG,
        "",
    ),
    (
        "one that refuses, and nothing runs",
        replace(DEAD, output=OutputEvidence("s3://b/s.zarr", error="no credentials")),
        Verdict.OUTPUT_BLOCKED,
        "cannot be read from here: no credentials",
    ),
    (
        "one that does not answer, and nothing runs",
        replace(DEAD, output=OutputEvidence("s3://b/s.zarr", read_answered=False)),
        Verdict.OUTPUT_BLOCKED,
        "does not answer: an attempt to look at it",
    ),
    (
        "the stage before an object store was full",
        replace(
            DEAD,
            status=replace(
                STATUS,
                held=False,
                exit_code=74,
                message="cannot write /tmp/hsstore-stage-1/x: No space left on device",
            ),
            output=OutputEvidence("s3://b/s.zarr", read_answered=True),
        ),
        Verdict.OUTPUT_FULL,
        "the disk of the stage is full: cannot write /tmp/hsstore-stage-1/x",
    ),
    (
        "and is full while the run stands",
        replace(
            QUIET,
            output=OutputEvidence("s3://b/s.zarr", stage="/tmp", stage_free_bytes=4096),
        ),
        Verdict.OUTPUT_FULL,
        "the disk of the stage is full: no space left: 4,096 bytes are free in /tmp",
    ),
    (
        "nothing but the probe",
        replace(QUIET, output=replace(OUTPUT, read_answered=False, write_answered=None)),
        Verdict.OUTPUT_BLOCKED,
        "an attempt to look at it",
    ),
    (
        "killed, and still there",
        replace(QUIET, worker=worker(replace(MAIN, state="Z"), IN_WRITE)),
        Verdict.OUTPUT_BLOCKED,
        "was killed and stays",
    ),
    (
        "nothing runs, and nothing could",
        replace(DEAD, output=replace(OUTPUT, write_answered=False)),
        Verdict.OUTPUT_BLOCKED,
        "",
    ),
    ("full", replace(DEAD, output=replace(OUTPUT, free_bytes=4096)), Verdict.OUTPUT_FULL, "4,096"),
    (
        "out of inodes",
        replace(DEAD, output=replace(OUTPUT, free_inodes=0)),
        Verdict.OUTPUT_FULL,
        "inodes",
    ),
    (
        "over quota, by the last word",
        replace(QUIET, status=status(exit_code=74, message="Disk quota exceeded")),
        Verdict.OUTPUT_FULL,
        "quota",
    ),
    (
        "read-only",
        replace(DEAD, output=replace(OUTPUT, read_only=True)),
        Verdict.OUTPUT_BLOCKED,
        "read-only",
    ),
    (
        "an input/output error",
        replace(DEAD, output=replace(OUTPUT, write_error="x: Input/output error")),
        Verdict.OUTPUT_BLOCKED,
        "refuses writes",
    ),
    (
        "a write that hangs while the server's heart beats",
        replace(HEALTHY, status=replace(STATUS, stages=(stage("disk:write", f"{STORE}/c.1"),))),
        Verdict.OUTPUT_BLOCKED,
        f"write of {STORE}/c.1 has not returned for 300 s",
    ),
    (
        "the same, and the probe hangs too",
        replace(
            HEALTHY,
            status=replace(STATUS, stages=(stage("disk:open", f"{STORE}/c.1"),)),
            output=replace(OUTPUT, write_answered=False),
        ),
        Verdict.OUTPUT_BLOCKED,
        "an attempt to write to it",
    ),
    (
        "an fsync takes as long as the data before it",
        replace(HEALTHY, status=replace(STATUS, stages=(stage("disk:fsync", f"{STORE}/c.1"),))),
        Verdict.HEALTHY,
        "",
    ),
    (
        "nothing but an fsync that takes long",
        replace(QUIET, status=status(stages=(stage("disk:fsync", f"{STORE}/c.1"),))),
        Verdict.OUTPUT_BLOCKED,
        f"is slow, or does not answer: fsync of {STORE}/c.1 takes 300 s",
    ),
]


@pytest.mark.parametrize("given", CASES, ids=names(CASES))
def test_the_disk_is_blamed_only_for_what_it_does(given: Given) -> None:
    check(given)
