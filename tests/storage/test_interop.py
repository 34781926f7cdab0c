"""Other implementations of Zarr read our stores: zarr-python, TensorStore and zarrs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorstore
import zarr
from zarrs.pipeline import UnsupportedDataTypeError

from hsstore.create import LayoutOptions
from hsstore.dtype import DTypeName, nan_bits
from hsstore.spec import FailureReason
from hsstore.testing.stores import commit_block, make_model, make_store, payload
from hsstore.writer import BlockWriter

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.store import Store

    Bits = npt.NDArray[Any]

LENGTHS = [3, 9, 40, 1, 16, 5, 7, 2, 30]
PENDING = {1, 4, 6}
"""Left out: whole blocks, and parts of blocks that hold other samples."""
DTYPES: list[DTypeName] = ["bfloat16", "float16", "float32"]
ZARRS_STRICT = {
    "codec_pipeline.path": "zarrs.ZarrsCodecPipeline",
    # Without it zarrs hands a data type that it does not know to zarr-python, silently.
    "codec_pipeline.strict": True,
}


@pytest.fixture(params=DTYPES)
def store(request: pytest.FixtureRequest, directory: Path) -> Store:
    """Give a store with complete and pending samples, one of them longer than a shard."""
    store = make_store(directory / "s.zarr", LENGTHS, model=make_model(request.param))
    for index in range(store.layout.blocks):
        samples = set(store.layout.block(index).samples) - PENDING
        if samples:
            commit_block(store, index, sorted(samples))
    return store


def expected_rows(store: Store) -> Bits:
    """Return the whole row axis as any reader must see it: NaN where nothing was written."""
    model = store.spec.model
    shape = (store.layout.rows, model.slots, model.hidden)
    rows = np.full(shape, nan_bits(model.dtype), dtype=store.bits)
    for sample in set(range(len(store))) - PENDING:
        start = store.layout.row_start[sample]
        rows[start : start + store.length[sample]] = payload(store, sample)
    return rows


def read_with_tensorstore(path: Path) -> Any:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    return tensorstore.open(spec, read=True).result().read().result()


def read_with_zarrs(path: Path, fill_value: int) -> Bits:
    """Read a bfloat16 array as uint16: zarrs has no bfloat16 for Python."""
    metadata = json.loads((path / "zarr.json").read_text())
    view = path.parent / "uint16_view"
    view.mkdir()
    metadata |= {"data_type": "uint16", "fill_value": fill_value}
    (view / "zarr.json").write_text(json.dumps(metadata))
    for shard in path.glob("c.*"):
        (view / shard.name).symlink_to(shard)
    with zarr.config.set(ZARRS_STRICT):
        return np.asarray(zarr.open_array(view, mode="r")[:])


def test_zarr_python_reads_every_bit_and_nan_where_nothing_was_written(store: Store) -> None:
    states = np.asarray(zarr.open_array(store.path / "hidden_states", mode="r")[:])

    np.testing.assert_array_equal(states.view(store.bits), expected_rows(store))


def test_tensorstore_reads_every_bit_and_nan_where_nothing_was_written(store: Store) -> None:
    states = read_with_tensorstore(store.path / "hidden_states")

    assert states.dtype.name == store.spec.model.dtype
    np.testing.assert_array_equal(states.view(store.bits), expected_rows(store))


@pytest.mark.parametrize("store", ["bfloat16"], indirect=True)
def test_zarrs_reads_every_bit_through_a_uint16_view(store: Store) -> None:
    states = read_with_zarrs(store.path / "hidden_states", nan_bits("bfloat16"))

    np.testing.assert_array_equal(states, expected_rows(store))


@pytest.mark.parametrize("store", ["float16", "float32"], indirect=True)
def test_zarrs_reads_the_other_types_as_they_are(store: Store) -> None:
    with zarr.config.set(ZARRS_STRICT):
        states = np.asarray(zarr.open_array(store.path / "hidden_states", mode="r")[:])

    np.testing.assert_array_equal(states.view(store.bits), expected_rows(store))


@pytest.mark.parametrize("store", ["bfloat16"], indirect=True)
def test_zarrs_refuses_bfloat16_itself_in_strict_mode(store: Store) -> None:
    # The day this fails, the uint16 view and its mention in docs/format.md can go.
    with zarr.config.set(ZARRS_STRICT), pytest.raises(UnsupportedDataTypeError):
        zarr.open_array(store.path / "hidden_states", mode="r")[:]


@pytest.mark.parametrize("name", ["input_ids", "loss_mask", "row_start", "length", "sample_id",
                                  "split", "metadata", "metadata_end", "complete", "failed",
                                  "digest", "norm_weight"])  # fmt: skip
def test_tensorstore_and_zarrs_read_every_small_array(directory: Path, name: str) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    first, *others = store.layout.block(0).samples
    commit_block(store, 0, others, {first: FailureReason.BAD_DATA})
    ours = np.asarray(zarr.open_array(store.path / name, mode="r")[:])

    tensorstore_values = read_with_tensorstore(store.path / name)
    with zarr.config.set(ZARRS_STRICT):
        zarrs_values = np.asarray(zarr.open_array(store.path / name, mode="r")[:])

    np.testing.assert_array_equal(tensorstore_values, ours)
    np.testing.assert_array_equal(zarrs_values, ours)
    assert ours.any()


def all_patterns_store(directory: Path, encoders: ThreadPoolExecutor) -> tuple[Store, Bits]:
    """Store one sample that holds all 65,536 bit patterns, and one of -0.0 alone."""
    model = make_model(hidden=256)
    sizes = LayoutOptions(chunk_rows=64, shard_rows=1024, span_samples=2)
    store = make_store(directory / "s.zarr", [256, 64], model=model, options=sizes)
    patterns = np.arange(65_536, dtype=np.uint16).reshape(256, 1, 256).repeat(3, axis=1)
    minus_zero = np.full((64, 3, 256), 0x8000, np.uint16)
    block = store.layout.block(0)
    writer = BlockWriter(store.path, store.layout, "bfloat16", block, run="run", encoders=encoders)
    writer.append(0, patterns)
    writer.append(1, minus_zero)
    store.commit(writer, {}, lambda: None)
    rows = np.full((1024, 3, 256), nan_bits("bfloat16"), np.uint16)
    rows[:256], rows[256:320] = patterns, minus_zero
    return store, rows


def test_all_bfloat16_patterns_survive_in_every_reader(
    directory: Path, encoders: ThreadPoolExecutor
) -> None:
    store, rows = all_patterns_store(directory, encoders)
    path = store.path / "hidden_states"

    ours = store[0].hidden_states.view(np.uint16), store[1].hidden_states.view(np.uint16)
    with_zarr = np.asarray(zarr.open_array(path, mode="r")[:]).view(np.uint16)
    with_tensorstore = read_with_tensorstore(path).view(np.uint16)
    with_zarrs = read_with_zarrs(path, nan_bits("bfloat16"))

    np.testing.assert_array_equal(np.concatenate(ours), rows[:320])
    np.testing.assert_array_equal(with_zarr, rows)
    np.testing.assert_array_equal(with_tensorstore, rows)
    np.testing.assert_array_equal(with_zarrs, rows)


FRESH_READER = """
import json, sys
import zarr

states = zarr.open_group(sys.argv[1], mode="r")["hidden_states"]
values = states[:]
print(json.dumps({
    "dtype": values.dtype.name,
    "bits": values.view("uint16").tobytes().hex(),
    "imported": sorted(name for name in sys.modules if name.startswith("hsstore")),
}))
"""


@pytest.mark.parametrize("store", ["bfloat16"], indirect=True)
def test_zarr_python_reads_in_a_process_that_never_imports_hsstore(store: Store) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FRESH_READER, str(store.path)],
        check=True,
        capture_output=True,
        text=True,
        cwd="/",  # so that only the installed entry points can find hsstore
    )

    result = json.loads(run.stdout)
    assert result["dtype"] == "bfloat16"
    assert bytes.fromhex(result["bits"]) == expected_rows(store).tobytes()
    # zarr loads the data type, and with it nothing of the library but that.
    assert result["imported"] == ["hsstore", "hsstore.dtype"]


def test_the_golden_states_of_an_empty_golden_open_everywhere(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)

    assert zarr.open_array(store.path / "golden", mode="r").shape == (0, 3, 16)
    assert read_with_tensorstore(store.path / "golden").shape == (0, 3, 16)
