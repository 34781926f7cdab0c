"""`hsstore doctor` of a store under a URL: what it finds there, in bounded time, and of the runs that write there."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from extraction.status import RunStatus
from hsstore.claims import Claims
from hsstore.report import Diagnosis
from hsstore.store import Store
from hsstore.testing.invariants import complete_samples
from hsstore.testing.stores import make_store
from hsstore.verdict import Verdict
from tests.command import command
from tests.doctor.test_server_verdicts import said
from tests.extraction.tiny import write_data
from tests.faults.asking import expect
from tests.faults.fake import serving
from tests.watchdog.runs import ENVIRONMENT, extracting

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.objects.s3 import S3

SAMPLES = 60


def doctor(url: str, *options: str) -> Diagnosis:
    """Ask in this process, whose children do the looking."""
    # Patient: what is slow here is a busy machine. The last --timeout counts.
    ended = command("doctor", url, "--json", "--timeout", "60", *options)
    assert ended.stdout, ended.output
    found = Diagnosis.model_validate_json(ended.stdout)
    assert ended.exit_code == found.verdict.exit_code
    return found


def test_a_store_that_nobody_fills_is_told_as_on_a_disk(remote: S3, mixed: Path) -> None:
    url = remote.shared(mixed)
    here, there = doctor(str(mixed)), doctor(url)

    assert there.verdict == here.verdict == Verdict.CLIENT_DEAD, there
    assert there.store == url
    store = Store.open(mixed)
    said(
        there.evidence,
        f"output {url}",
        "output: answers reads; writing was not tried: the doctor puts nothing",
        f"store: {len(complete_samples(store))} of {len(store)} samples complete",
    )
    assert remote.writes() == 0


def test_what_is_no_store_is_wrong_input(remote: S3) -> None:
    bucket = f"{remote.protocol}://states"
    for url, text in (
        (remote.new("none.zarr"), "does not exist, and no run is making it"),
        (bucket, f"give it a name in the bucket, such as {bucket}/states.zarr"),
    ):
        ended = command("doctor", url)
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert text in ended.stderr


def test_a_key_a_bucket_and_an_endpoint_that_are_wrong_are_findings(
    s3: S3, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.shared(mixed)
    s3.fail(403, ".*", times=10_000)
    forbidden = doctor(url)
    s3.fail("", "", times=0)
    missing = doctor("s3://no-such-bucket/s.zarr")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    away = doctor(url)

    for found, text in (
        (forbidden, "AccessDenied"),
        (missing, "NoSuchBucket"),
        (away, "tried 3 times"),
    ):
        assert found.verdict == Verdict.OUTPUT_BLOCKED, found
        assert found.summary.startswith("the object store cannot be read from here: cannot ")
        assert text in found.summary
        assert "credentials and the endpoint" in found.advice


def test_a_store_that_does_not_answer_is_said_in_time(remote: S3, mixed: Path) -> None:
    url = remote.shared(mixed)
    remote.fail("delay", "complete/c", times=10_000, seconds=30)
    began = time.monotonic()
    found = doctor(url, "--timeout", "2")
    took = time.monotonic() - began

    assert found.verdict == Verdict.OUTPUT_BLOCKED, found
    assert "the object store is slow, or does not answer: " in found.summary
    assert f"did not come back in 2 s (reading {url}/complete)" in found.summary
    assert took < 20


def test_a_damaged_store_is_not_blamed_on_the_object_store(remote: S3, directory: Path) -> None:
    url = remote.upload(make_store(directory / "s.zarr", [3, 9]).path)
    remote.write(f"{url}/zarr.json", b"not json")

    found = doctor(url)

    assert found.verdict == Verdict.PLAN_MISMATCH, found
    assert "zarr.json is damaged" in found.summary


def test_runs_without_a_page_are_known_by_their_claims_and_signs_of_life(
    remote: S3, mixed: Path
) -> None:
    store = Store.open(remote.upload(mixed))
    now = time.time()
    told = RunStatus(
        run="0123456789ab", phase="extracting", host="node7", samples=9,
        updated_seconds=now, progress_seconds=now,
    )  # fmt: skip
    with Claims(store, told.run, say=told.model_dump_json().encode) as claims:
        claims.take([0])
        found = doctor(str(store.location), "--stalled-after", "600")

    said(
        found.evidence,
        f"store is claimed by run {told.run} (pid {os.getpid()} on ",
        "): it lives",
        f"worker (pid {os.getpid()}): ",
        f"run {told.run} (pid 0 on node7, not here): by its copy beside the store",
    )
    assert found.verdict == Verdict.HEALTHY, found


def test_a_run_is_seen_by_its_page_its_spool_and_its_server(s3: S3, directory: Path) -> None:
    url = s3.new("s.zarr")
    data = write_data(directory / "data.jsonl", [40] * SAMPLES)
    more = ("--data", data, "--max-in-flight", "4", "--stage", directory / "stage")
    environment = ENVIRONMENT | {name: value for name, value in os.environ.items() if "AWS" in name}
    with serving(directory / "spool", SAMPLES) as fake:
        fake.slowly(0.3)
        with extracting(url, fake, *more, env=environment) as run:
            fake.wait_for_requests(8)
            fake.slowly(5)
            healthy = expect(url, Verdict.HEALTHY)
            nowhere = environment | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
            hidden = expect(url, Verdict.HEALTHY, env=nowhere)
            run.process.kill()
            run.process.wait()
            dead = expect(url, Verdict.CLIENT_DEAD)

    said(
        healthy.evidence,
        "extracting; its supervisor lives",
        f"spool {directory / 'spool'}: server alive, client alive",
        "health ok",
        "answers reads; writing was not tried",
        f"stage {directory / 'stage'}: ",
    )
    said(hidden.evidence, "output: cannot read ")
    assert "no process works on this store" in dead.summary
