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

from hsstore.codec import CODEC_NAMES, CodecName
from hsstore.create import LayoutOptions
from hsstore.dtype import DTypeName, bits_dtype, nan_bits, native_dtype
from hsstore.spec import FailureReason
from hsstore.testing.stores import commit_block, make_model, make_store, payload
from hsstore.writer import BlockWriter
from hsstore.zarr_codec import ChannelBiasCodec
from hsstore.zarr_dtype import BFloat16

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
STANDARD_CODECS: list[CodecName] = ["fast", "zstd", "lz4", "none"]
"""What every implementation of Zarr v3 decodes."""
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


def all_patterns_store(
    directory: Path, encoders: ThreadPoolExecutor, codec: CodecName
) -> tuple[Store, Bits]:
    """Store one sample that holds all 65,536 bit patterns, and one of -0.0 alone.

    Chunks are large enough to be split into planes, and partly padding.
    """
    model = make_model(hidden=256)
    sizes = LayoutOptions(chunk_rows=192, shard_rows=1152, span_samples=2, codec=codec)
    store = make_store(directory / "s.zarr", [256, 64], model=model, options=sizes)
    patterns = np.arange(65_536, dtype=np.uint16).reshape(256, 1, 256).repeat(3, axis=1)
    minus_zero = np.full((64, 3, 256), 0x8000, np.uint16)
    block = store.layout.block(0)
    writer = BlockWriter(store.path, store.layout, store.codec, block, run="run", encoders=encoders)
    writer.append(0, patterns)
    writer.append(1, minus_zero)
    store.commit(writer, {}, lambda: None)
    rows = np.full((1152, 3, 256), nan_bits("bfloat16"), np.uint16)
    rows[:256], rows[384:448] = patterns, minus_zero
    return store, rows


@pytest.mark.parametrize("codec", STANDARD_CODECS)
def test_all_bfloat16_patterns_survive_in_every_reader(
    directory: Path, encoders: ThreadPoolExecutor, codec: CodecName
) -> None:
    store, rows = all_patterns_store(directory, encoders, codec)
    path = store.path / "hidden_states"

    ours = store[0].hidden_states.view(np.uint16), store[1].hidden_states.view(np.uint16)
    with_zarr = np.asarray(zarr.open_array(path, mode="r")[:]).view(np.uint16)
    with_tensorstore = read_with_tensorstore(path).view(np.uint16)
    with_zarrs = read_with_zarrs(path, nan_bits("bfloat16"))

    np.testing.assert_array_equal(ours[0], rows[:256])
    np.testing.assert_array_equal(ours[1], rows[384:448])
    np.testing.assert_array_equal(with_zarr, rows)
    np.testing.assert_array_equal(with_tensorstore, rows)
    np.testing.assert_array_equal(with_zarrs, rows)


def test_zarr_python_reads_and_writes_the_channel_bias_as_we_do(
    directory: Path, encoders: ThreadPoolExecutor
) -> None:
    store, rows = all_patterns_store(directory, encoders, "max")
    source = store.path / "hidden_states"
    copy = directory / "copy"
    copy.mkdir()
    (copy / "zarr.json").write_bytes((source / "zarr.json").read_bytes())

    values = zarr.open_array(source, mode="r")[:]
    # Or zarr compares all values with the fill value, and warns of the NaNs.
    zarr.open_array(copy, mode="r+").with_config({"write_empty_chunks": True})[:] = values

    np.testing.assert_array_equal(np.asarray(values).view(np.uint16), rows)
    copied = np.asarray(zarr.open_array(copy, mode="r")[:])
    np.testing.assert_array_equal(copied.view(np.uint16), rows)
    np.testing.assert_array_equal(store[0].hidden_states.view(np.uint16), rows[:256])
    np.testing.assert_array_equal(store[1].hidden_states.view(np.uint16), rows[384:448])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (5, 3), (9, 2, 3, 4)])
def test_zarr_python_has_the_channel_bias_for_arrays_of_any_rank(
    directory: Path, dtype: DTypeName, shape: tuple[int, ...]
) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 16, shape).astype(bits_dtype(dtype))
    array = zarr.create_array(
        directory / "a",
        shape=shape,
        chunks=tuple(-(-size // 2) for size in shape),
        dtype=BFloat16() if dtype == "bfloat16" else dtype,
        serializer=ChannelBiasCodec(),
        compressors=None,
    )

    array[...] = bits.view(native_dtype(dtype))

    read = np.asarray(zarr.open_array(directory / "a", mode="r")[...])
    np.testing.assert_array_equal(read.view(bits.dtype), bits)


def test_the_channel_bias_is_not_for_integers(directory: Path) -> None:
    array = zarr.create_array(
        directory / "a", shape=(4, 4), dtype="int16", serializer=ChannelBiasCodec()
    )

    with pytest.raises(ValueError, match="not for int16"):
        array[...] = 1


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_hidden_states_say_how_they_are_encoded_and_golden_is_always_standard(
    directory: Path, codec: CodecName
) -> None:
    options = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=6, codec=codec)
    store = make_store(directory / "s.zarr", LENGTHS, options=options)

    states = json.loads((store.path / "hidden_states" / "zarr.json").read_text())["codecs"]
    golden = json.loads((store.path / "golden" / "zarr.json").read_text())["codecs"]

    inner = states[0]["configuration"]["codecs"]
    names = [part["name"] for part in inner]
    recorded = store.spec.codec
    match codec:
        case "none":
            assert names == ["bytes", "crc32c"]
            assert recorded == inner[0]
        case "max":
            assert names == ["hsstore.channel_bias", "blosc", "crc32c"]
            assert recorded["name"] == names[0]
            assert recorded["configuration"]["compressor"] == inner[1]
        case _:
            assert names == ["bytes", "blosc", "crc32c"]
            assert recorded == inner[1]
    assert [part["name"] for part in golden] == ["bytes", "blosc", "crc32c"]


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


def read_in_a_fresh_process(store: Store) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-c", FRESH_READER, str(store.path)],
        check=True,
        capture_output=True,
        text=True,
        cwd="/",  # so that only the installed entry points can find hsstore
    )
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def test_zarr_python_decodes_the_channel_bias_in_a_process_that_never_imports_hsstore(
    directory: Path, encoders: ThreadPoolExecutor
) -> None:
    store, rows = all_patterns_store(directory, encoders, "max")

    assert bytes.fromhex(read_in_a_fresh_process(store)["bits"]) == rows.tobytes()


@pytest.mark.parametrize("store", ["bfloat16"], indirect=True)
def test_zarr_python_reads_in_a_process_that_never_imports_hsstore(store: Store) -> None:
    result = read_in_a_fresh_process(store)

    assert result["dtype"] == "bfloat16"
    assert bytes.fromhex(result["bits"]) == expected_rows(store).tobytes()
    # zarr loads the data type, and with it nothing of the library but that.
    assert result["imported"] == ["hsstore", "hsstore.zarr_dtype"]


def test_the_golden_states_of_an_empty_golden_open_everywhere(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)

    assert zarr.open_array(store.path / "golden", mode="r").shape == (0, 3, 16)
    assert read_with_tensorstore(store.path / "golden").shape == (0, 3, 16)
