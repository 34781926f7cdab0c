"""`verify --semantic`, `--against` and `--processes`, `consolidate --processes`, and feeds of trainers, at a URL."""

from __future__ import annotations

import asyncio
import json
import pickle
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hsstore
import hsstore.cli
from hsstore.errors import UnreachableError
from hsstore.location import RemotePath
from hsstore.semantic import check_semantics
from hsstore.tasks import Where
from tests.command import command
from tests.extraction.fake_server import serve_fake
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data
from tests.objects.s3 import NAMES
from tests.semantic.synthetic import Formula, formula_checkpoint, make_store, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.testing import Result

    from tests.objects.s3 import S3

TEXTS = [text(seed, 160 - seed % 2) for seed in range(16)]
SWAPPED = 4, 6


def report_of(done: Result, code: int = 0) -> dict[str, Any]:
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="session")
def room() -> Iterator[Path]:
    """Give a directory in shared memory, for what no test changes."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def checkpoint(room: Path) -> Path:
    """Give the checkpoint of the formula."""
    return formula_checkpoint(room / "model")


@pytest.fixture(scope="session")
def healthy(room: Path) -> Path:
    """Give a store of the formula's states."""
    return make_store(room / "healthy.zarr", TEXTS, [*map(Formula().capture, TEXTS)]).path


@pytest.fixture(scope="session")
def swapped(room: Path) -> Path:
    """Give one in which two samples of one length have each other's."""
    states = [*map(Formula().capture, TEXTS)]
    one, other = SWAPPED
    states[one], states[other] = states[other], states[one]
    return make_store(room / "swapped.zarr", TEXTS, states).path


def count(requests: list[dict[str, str]]) -> Counter[str]:
    """Count requests by array; what describes one is not counted."""
    paths = [one["path"].partition(".zarr/")[2] for one in requests]
    return Counter(path.partition("/")[0] for path in paths if not path.endswith("zarr.json"))


# --- verify -------------------------------------------------------------------------------------


def test_semantic_judges_a_store_under_a_url_as_that_on_a_disk(
    s3: S3, swapped: Path, checkpoint: Path
) -> None:
    url = s3.shared(swapped)
    here, there = (
        report_of(command("verify", place, "--semantic", checkpoint, "--json"), 1)["semantic"]
        for place in (swapped, url)
    )

    assert {one["sample"] for one in there["bad"]} == {*SWAPPED}
    assert there == here


def test_semantic_reads_a_sample_in_two_requests_once_indexes_are_known(
    s3: S3, healthy: Path, checkpoint: Path
) -> None:
    """Three times: to learn, to set limits, to judge. What is found bad is read again, to say what it is."""
    url = s3.upload(healthy)
    report = check_semantics(RemotePath(url), checkpoint, Where(workers=1))

    asked = count(s3.requests())

    assert report.ok
    shards = len([*(healthy / "hidden_states").glob("c.*")])
    assert asked["hidden_states"] == 3 * len(TEXTS) + shards
    assert asked["complete"] == 3 * len(TEXTS) + 1


def test_semantic_ends_with_75_where_the_store_is_away_and_names_no_sample(
    s3: S3, swapped: Path, checkpoint: Path
) -> None:
    url = s3.shared(swapped)
    s3.fail(500, "hidden_states/c", times=10_000)
    with pytest.raises(UnreachableError, match=f"cannot read {url}/hidden_states/c"):
        check_semantics(RemotePath(url), checkpoint)


async def test_against_compares_a_store_under_a_url_with_what_a_server_gives(
    s3: S3, directory: Path
) -> None:
    url, spool = RemotePath(f"s3://states/{next(NAMES)}/s.zarr"), directory / "spool"
    data = write_data(directory / "data.jsonl", [10] * 6)
    async with serve_fake(spool, 6) as fake:
        outcome = await run_here(url, fake.url, spool, data, stage=directory)
        assert outcome.code == 0, outcome.message
        before = {name: (url / name).read_bytes() for name in url.find()}
        words = "verify", url, "--against", f"{fake.url}={spool}", "--json"
        same = await asyncio.to_thread(command, *words)
        fake.offset = 0.5
        other = await asyncio.to_thread(command, *words)

    assert report_of(same)["against"]["bit_equal"] == 6
    found = report_of(other, 1)["against"]
    assert {one["verdict"] for one in found["samples"]} == {"differs"}
    assert {name: (url / name).read_bytes() for name in url.find()} == before


def test_verify_and_consolidate_on_processes_read_and_write_under_a_url(
    s3: S3, mixed: Path
) -> None:
    source, new = s3.shared(mixed), f"s3://states/{next(NAMES)}/new.zarr"
    processes = "--processes", "2", "--json"

    verified = report_of(command("verify", source, *processes))
    made = report_of(command("consolidate", source, new, *processes, "--no-verify"))

    on_threads = report_of(command("verify", mixed, "--json"))
    assert verified | {"path": ""} == on_threads | {"path": ""}
    here, there = hsstore.open(mixed), hsstore.open(new)
    assert made["complete"] == there.completion().complete.sum() > 0
    by_id = {here.sample_id(i): i for i in np.flatnonzero(here.completion().complete).tolist()}
    for sample in np.flatnonzero(there.completion().complete).tolist():
        expected = here.states(by_id[there.sample_id(sample)])
        np.testing.assert_array_equal(there.states(sample).view("u2"), expected.view("u2"))


# --- trainers -----------------------------------------------------------------------------------


def test_feeds_that_need_no_trainer_give_the_same_samples_from_a_url(
    s3: S3, healthy: Path, checkpoint: Path
) -> None:
    """Those of SpecForge and speculators are in tests/trainers."""
    torch = pytest.importorskip("torch")
    modelopt = pytest.importorskip("hsstore.integrations.modelopt")
    automodel = pytest.importorskip("hsstore.integrations.automodel")
    sizes = {"draft_vocabulary": 16, "seq_length": 32}
    places = healthy, s3.shared(healthy)
    for here, opened in (
        map(modelopt.ModelOptDataset, places),
        (automodel.AutomodelDataset(place, checkpoint, **sizes) for place in places),
    ):
        there = pickle.loads(pickle.dumps(opened))
        loader = torch.utils.data.DataLoader(there, batch_size=None, num_workers=1)  # forked
        assert len(there) == len(here) == len(TEXTS)
        for row, item in enumerate(loader):
            assert_same(item, here[row])
            assert_same(there[row], here[row])


def assert_same(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert mine[name].equal(value) if hasattr(value, "equal") else mine[name] == value, name


@pytest.mark.parametrize(
    ("module", "name"),
    [("loaders", "Eagle3Dataset"), ("integrations.modelopt", "ModelOptDataset")],
)
def test_a_sample_of_a_training_is_two_requests_once_indexes_are_known(
    s3: S3, healthy: Path, module: str, name: str
) -> None:
    dataset = getattr(pytest.importorskip(f"hsstore.{module}"), name)(s3.shared(healthy))
    for row in range(len(dataset)):
        _ = dataset[row]
    s3.requests()

    for row in range(len(dataset)):
        _ = dataset[row]
        assert count(s3.requests()) == {"complete": 1, "hidden_states": 1}


def test_a_stream_reads_a_sample_in_two_requests(s3: S3, healthy: Path) -> None:
    loaders = pytest.importorskip("hsstore.loaders")
    stream = loaders.Eagle3Stream(s3.shared(healthy), batch_size=4, seed=5)
    first = list(stream)
    s3.requests()

    batches = list(stream)

    asked = count(s3.requests())
    assert len(batches) == len(first) == len(TEXTS) // 4
    assert asked["hidden_states"] == len(TEXTS)
    assert 0 < asked["complete"] <= len(TEXTS) + 1
