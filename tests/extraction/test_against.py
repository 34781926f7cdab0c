"""`hsstore verify --against`: stored states compared with those that a server gives now."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from extraction.access import Access
from extraction.against import check_against
from extraction.canary import FIRST_RID
from extraction.comparison import MANY_ROWS, compare, judge
from extraction.options import ExtractOptions
from extraction.spool import ClientInfo, SpoolClient
from hsstore.errors import InputError, InterruptedRunError, RefusedError
from hsstore.store import Store
from hsstore.testing.finite import commit_states
from tests.extraction.fake_model import Fault, fake_states
from tests.extraction.fake_server import FakeServer, serve_fake
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import numpy.typing as npt

    from hsstore.report import AgainstReport

SAMPLES, ROWS = 12, 40
SCHEMAS = Path(__file__).parents[2] / "schemas"


@pytest.fixture
async def fake(store: Path, room: Path) -> AsyncIterator[FakeServer]:
    """Give a server, and fill the store with its states."""
    data = write_data(room / "against.jsonl", [ROWS] * SAMPLES)
    async with serve_fake(store.parent / "spool", SAMPLES) as server:
        outcome = await run_here(store, server.url, server.spool.directory.path, data)
        assert outcome.code == 0, outcome.message
        yield server


def ask(path: Path, url: str, spool: Path, samples: int = SAMPLES, seed: int = 0) -> AgainstReport:
    options = ExtractOptions(store=path, server=url, spool=spool, server_wait_seconds=5)
    return check_against(Store.open(path), options, Access(), samples=samples, seed=seed)


async def ask_fake(path: Path, fake: FakeServer, **options: Any) -> AgainstReport:
    return await asyncio.to_thread(ask, path, fake.url, fake.spool.directory.path, **options)


def files_of(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return times and contents of all that is there; directories have no contents."""
    return {
        str(file): (file.stat().st_mtime_ns, b"" if file.is_dir() else file.read_bytes())
        for file in [path, *path.rglob("*")]
    }


def store_other_states(path: Path, fake: FakeServer, sample: int, rows: slice) -> None:
    """Replace states of one sample, durably and with a right digest, by those of other tokens."""
    store = Store.open(path)
    block = store.layout.block(store.layout.block_of(sample)).samples
    states = {i: np.array(store.payload.read(i)) for i in block}
    other = fake_states(store.input_ids(sample) + 1, fake.info)
    states[sample][rows] = other[rows]
    store.withdraw(np.array(block))
    commit_states(store, states)


async def test_the_same_server_gives_the_same_bits_and_nothing_is_written(
    store: Path, fake: FakeServer
) -> None:
    before = files_of(store.parent)

    report = await ask_fake(store, fake)

    assert report.ok
    assert report.compared == report.bit_equal == SAMPLES
    assert [one.sample for one in report.samples] == list(range(SAMPLES))
    assert report.golden == report.floor == 0
    assert [slot.name for slot in report.slots] == ["layer 0", "layer 3", "final"]
    for slot in report.slots:
        assert (slot.equal, slot.mean, slot.worst, slot.verdict) == (1, 0, 0, "equal")
        assert slot.least_cosine == pytest.approx(1)
    after = files_of(store.parent)
    spool = str(store.parent / "spool")
    assert {k: v for k, v in after.items() if not k.startswith(spool)} == {
        k: v for k, v in before.items() if not k.startswith(spool)
    }
    assert set(after) == set(before)


async def test_a_server_of_the_same_name_that_computes_otherwise_is_found_out(
    store: Path, fake: FakeServer
) -> None:
    fake.offset = 0.5

    report = await ask_fake(store, fake)

    assert not report.ok
    assert report.bit_equal == 0
    assert {one.verdict for one in report.samples} == {"differs"}
    assert {slot.verdict for slot in report.slots} == {"differs"}
    assert "slot 0: the median row differs by" in report.samples[0].detail
    assert report.golden is not None
    assert report.golden > report.slots[0].tolerance


async def test_rounding_is_within_the_tolerance_of_the_dtype(store: Path, fake: FakeServer) -> None:
    def round_otherwise(states: npt.NDArray[np.uint16]) -> None:
        states ^= np.random.default_rng(0).integers(0, 2, states.shape, dtype=np.uint16)

    fake.noise = round_otherwise

    report = await ask_fake(store, fake)

    assert report.ok
    assert {one.verdict for one in report.samples} == {"same"}
    assert 0.4 < report.slots[0].equal < 0.6
    assert 0 < report.slots[0].mean < report.slots[0].worst < report.slots[0].tolerance
    assert report.slots[0].tolerance == 12 * 2**-8


async def test_the_tolerance_grows_with_the_noise_of_a_server_that_does_not_repeat_itself(
    store: Path, fake: FakeServer
) -> None:
    generator = np.random.default_rng(0)

    def be_noisy(states: npt.NDArray[np.uint16]) -> None:
        states ^= generator.integers(0, 1 << 5, states.shape, dtype=np.uint16)

    fake.noise = be_noisy

    report = await ask_fake(store, fake)

    assert report.ok
    assert report.slots[0].median > 12 * 2**-8
    assert report.slots[0].tolerance == pytest.approx(4 * report.floor, rel=0.3)


async def test_a_sample_whose_stored_states_are_wrong_is_named(
    store: Path, fake: FakeServer
) -> None:
    store_other_states(store, fake, 5, slice(None))

    report = await ask_fake(store, fake)

    assert not report.ok
    assert [one.sample for one in report.samples if one.verdict != "equal"] == [5]
    assert report.samples[5].verdict == "differs"
    assert report.samples[5].sample_id == "sample-5"


async def test_a_piece_of_a_sample_that_is_wrong_is_named_by_its_rows(
    store: Path, fake: FakeServer
) -> None:
    store_other_states(store, fake, 3, slice(10, 10 + MANY_ROWS))

    report = await ask_fake(store, fake)

    assert not report.ok
    assert report.samples[3].verdict == "differs"
    assert "slot 1: rows 10 to 17 differ by up to" in report.samples[3].detail


async def test_single_rows_that_jump_are_told_and_are_no_failure(
    store: Path, fake: FakeServer
) -> None:
    store_other_states(store, fake, 3, slice(10, 12))

    report = await ask_fake(store, fake)

    assert report.ok
    assert report.samples[3].verdict == "rows"
    assert "2 single rows differ" in report.samples[3].detail


async def test_the_choice_follows_the_seed(store: Path, fake: FakeServer) -> None:
    chosen = [
        [one.sample for one in (await ask_fake(store, fake, samples=3, seed=seed)).samples]
        for seed in (1, 1, 2)
    ]

    assert chosen[0] == chosen[1] != chosen[2]
    assert [len(set(one)) for one in chosen] == [3, 3, 3]


async def test_what_the_server_does_not_give_is_told_and_the_rest_is_compared(
    store: Path, fake: FakeServer
) -> None:
    fake.always[SAMPLES + FIRST_RID + 2] = Fault.ENGINE
    fake.always[SAMPLES + FIRST_RID + 3] = Fault.NAN_ROW

    report = await ask_fake(store, fake)

    assert report.ok
    assert report.compared == SAMPLES - 2
    assert [one.verdict for one in report.samples[1:4]] == ["not-compared", "not-compared", "equal"]
    assert "engine: on demand" in report.samples[1].detail
    assert "what the server gave is wrong: row 20, slot 1 holds" in report.samples[2].detail


async def test_stored_states_that_are_damaged_are_told(store: Path, fake: FakeServer) -> None:
    shard = next((store / "hidden_states").glob("c.0.*"))
    content = bytearray(shard.read_bytes())
    content[40] ^= 0xFF
    shard.write_bytes(content)

    report = await ask_fake(store, fake)

    (bad,) = [one for one in report.samples if one.verdict == "not-compared"]
    assert "the stored states cannot be read: " in bad.detail


async def test_nothing_compared_is_a_refusal(store: Path, fake: FakeServer) -> None:
    for sent in range(SAMPLES + 2):
        fake.always[SAMPLES + FIRST_RID + sent] = Fault.ENGINE

    with pytest.raises(RefusedError, match="none of 12 samples could be compared with http"):
        await ask_fake(store, fake)


async def test_another_capture_is_refused_by_field_before_the_first_request(
    store: Path, fake: FakeServer
) -> None:
    fake.become(layers=(1, 3))
    forwards = fake._forwards

    with pytest.raises(RefusedError, match=r"layers is \(0, 3\) in the store and \(1, 3\)"):
        await ask_fake(store, fake)

    assert fake._forwards == forwards


async def test_a_spool_that_a_run_uses_is_left_alone(store: Path, fake: FakeServer) -> None:
    with (
        SpoolClient(fake.spool.directory.path, ClientInfo("other", "run")),
        pytest.raises(RefusedError, match="other"),
    ):
        await ask_fake(store, fake)


async def test_without_a_server_the_command_may_be_run_again(store: Path, fake: FakeServer) -> None:
    with pytest.raises(InterruptedRunError, match="start the server"):
        await asyncio.to_thread(ask, store, "http://127.0.0.1:9", store.parent / "nowhere")


async def test_a_store_without_a_complete_sample_is_wrong_input(
    store: Path, fake: FakeServer
) -> None:
    Store.open(store).withdraw(np.arange(SAMPLES))

    with pytest.raises(InputError, match="no sample is complete"):
        await ask_fake(store, fake)


async def test_the_command_shows_it_and_fails_when_states_differ(
    store: Path, fake: FakeServer
) -> None:
    server = f"{fake.url}={fake.spool.directory.path}"
    good = await command(store, "--against", server, "--against-samples", "3", "--json")
    store_other_states(store, fake, 5, slice(None))
    bad = await command(store, "--against", server, "--against-samples", str(SAMPLES))
    refused = await command(store, "--against", "http://user:secret@localhost:1")

    document = json.loads(good.stdout)
    schema = json.loads((SCHEMAS / "verify.schema.json").read_text())
    jsonschema.validate(document, schema)  # type: ignore[no-untyped-call]
    assert good.returncode == 0
    assert document["ok"]
    assert document["against"]["bit_equal"] == document["against"]["compared"] == 3
    assert bad.returncode == 1
    assert "layer 3" in bad.stdout
    assert "sample-5" in bad.stdout
    assert "the median row differs by" in " ".join(bad.stdout.split())
    assert "against: differs: 12 of 12 samples compared with http" in bad.stdout
    assert refused.returncode == 2
    assert "secret" not in refused.stderr


async def command(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `hsstore verify` to its end; the fake server answers meanwhile."""

    def run() -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "hsstore", "verify", str(store), *arguments]
        environment = os.environ | {"COLUMNS": "160"}
        return subprocess.run(words, capture_output=True, text=True, env=environment, check=False)

    return await asyncio.to_thread(run)


# --- the arithmetic ---------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 300), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=30)
def test_figures_are_those_of_the_definition(step: int, rows: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    shape = (rows, 2, 5)
    old = generator.normal(size=shape).astype(ml_dtypes.bfloat16)
    new = np.where(generator.random(shape) < 0.5, old, generator.normal(size=shape)).astype(
        ml_dtypes.bfloat16
    )

    found = compare(lambda part: old[part].view(np.uint16), new.view(np.uint16), "bfloat16", step)

    a, b = old.astype(np.float64), new.astype(np.float64)
    size_a, size_b = np.sqrt((a * a).sum(axis=2)), np.sqrt((b * b).sum(axis=2))
    np.testing.assert_allclose(found.difference, np.sqrt(((b - a) ** 2).sum(axis=2)) / size_a)
    np.testing.assert_allclose(found.cosine, (a * b).sum(axis=2) / (size_a * size_b), atol=1e-12)
    np.testing.assert_allclose(found.equal, (old.view("u2") == new.view("u2")).mean(axis=(0, 2)))


def test_rows_without_a_number_or_a_direction_are_beyond_every_tolerance() -> None:
    old = np.ones((4, 1, 3), np.float32)
    new = old.copy()
    old[0], new[1], new[2, 0, 1] = 0, 0, np.nan

    found = compare(lambda part: old[part].view(np.uint32), new.view(np.uint32), "float32")

    assert found.difference[:, 0].tolist() == [np.inf, 1, np.inf, 0]
    np.testing.assert_allclose(found.cosine[:, 0], [0, 0, 0, 1])
    assert judge(found, np.array([0.1]))[0][0] == "differs"
