"""Create a store: its whole plan is written before the first state exists.

It is built beside its final name and renamed into place, so that a store is there completely or
not at all; of several processes that create the same one, all end with the winner's.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.arrays import (
    METADATA_CHUNK_BYTES,
    METADATA_SHARD_BYTES,
    ROWS_A_CHUNK,
    ROWS_A_SHARD,
    SAMPLES_A_CHUNK,
    ArrayLayout,
    Arrays,
)
from hsstore.codec import DEFAULT_CODEC, CodecName, codec_metadata
from hsstore.digest import plan_hash
from hsstore.dtype import native_dtype
from hsstore.errors import RefusedError
from hsstore.files import (
    make_directory,
    output_errors,
    rename_directory_without_replacing,
    stage_parent,
)
from hsstore.layout import choose_geometry, plan_layout
from hsstore.location import RemotePath
from hsstore.seal import seal
from hsstore.spec import Dataset, LayoutSizes, Model, StoreSpec
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from hsstore.dataset import TokenizedDataset
    from hsstore.layout import Geometry, Layout
    from hsstore.location import Location


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """How a user wants states to be stored; None means the default."""

    chunk_rows: int | None = None
    shard_rows: int | None = None
    span_samples: int | None = None
    codec: CodecName = DEFAULT_CODEC


@dataclass(frozen=True, slots=True)
class Golden:
    """The states of a short fixed prefix, asked for alone: a fingerprint of the server."""

    input_ids: tuple[int, ...]
    bits: npt.NDArray[Any]
    """Shape (len(input_ids), slots, hidden), raw bits."""


def layout_for(
    length: npt.NDArray[Any], model: Model, options: LayoutOptions | None = None
) -> Layout:
    """Lay out samples of the given lengths for a model's states."""
    options = options or LayoutOptions()
    geometry = choose_geometry(
        length,
        slots=model.slots,
        hidden=model.hidden,
        itemsize=native_dtype(model.dtype).itemsize,
        chunk_rows=options.chunk_rows,
        shard_rows=options.shard_rows,
        span_samples=options.span_samples,
    )
    return plan_layout(length, geometry)


def create_store(
    path: Location,
    dataset: TokenizedDataset,
    model: Model,
    *,
    norm_weight: npt.NDArray[np.float32],
    tokenizer_hash: str | None = None,
    options: LayoutOptions | None = None,
    golden: Golden | None = None,
    finish: Callable[[Path], None] | None = None,
    stage: Path | None = None,
) -> Store:
    """Create a store with everything but its payload, or open the one that is already there.

    Parameters
    ----------
    norm_weight : float32 (hidden,)
        Weight of the model's final norm.
    finish : callable, optional
        Adds to the store, durably, before it has its name; given the directory where it is then.
    stage : Path, optional
        Where a store under a URL is built before it is put there; TMPDIR if it is left out.

    Raises
    ------
    RefusedError
        A store is there, and it was made for another model, from other data or with another layout.
    """
    layout = layout_for(dataset.length, model, options)

    def build(root: Path) -> None:
        codec = (options or LayoutOptions()).codec
        spec = _spec(dataset, model, layout, codec, tokenizer_hash, golden)
        _build(root, spec, dataset, layout, norm_weight, golden)
        if finish is not None:
            finish(root)

    if isinstance(path, RemotePath):
        _build_and_upload(path, build, stage)
    elif not path.exists():
        _build_and_rename(path, build)
    store = Store.open(path)  # ours, or that of whoever was first
    store.spec.refuse_other_model(model)
    store.spec.refuse_other_dataset(dataset.fingerprint())
    _refuse_other_layout(store, layout, options)
    return store


def _refuse_other_layout(store: Store, layout: Layout, options: LayoutOptions | None) -> None:
    """Refuse the store of whoever was first, if it is not the one that would have been made."""
    codec = codec_metadata((options or LayoutOptions()).codec, layout.geometry.itemsize)
    for name, theirs, mine in (
        ("layout", store.spec.layout, _sizes(layout.geometry)),
        ("codec", store.spec.codec, codec),
    ):
        if theirs != mine:
            raise RefusedError(
                f"{store.location} is there already, with another {name}: {theirs}, not {mine}; give the "
                "same sizes and codec as whoever has created it, or use another store"
            )


def _build_and_rename(path: Path, build: Callable[[Path], None]) -> None:
    building = path.with_name(f".{path.name}.{uuid.uuid4().hex}.building")
    try:
        with output_errors(path):
            make_directory(path.parent)
            building.mkdir()
        build(building)
        with output_errors(path):
            rename_directory_without_replacing(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)  # the loser's, or a failed one


def _build_and_upload(root: RemotePath, build: Callable[[Path], None], stage: Path | None) -> None:
    from hsstore.birth import is_born, upload_store  # noqa: PLC0415  # brings fsspec

    if is_born(root):
        return
    where = stage_parent(stage)
    with output_errors(where):
        room = tempfile.TemporaryDirectory(dir=where, prefix="hsstore-")
    with room as building:
        with output_errors(where):
            build(Path(building))
        upload_store(Path(building), root)


def _spec(
    dataset: TokenizedDataset,
    model: Model,
    layout: Layout,
    codec: CodecName,
    tokenizer_hash: str | None,
    golden: Golden | None,
) -> StoreSpec:
    return StoreSpec(
        store=str(uuid.uuid4()),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        created_by=f"hsstore {version('hsstore')}",
        model=model,
        dataset=Dataset(
            fingerprint=dataset.fingerprint(),
            samples=len(dataset),
            tokens=dataset.tokens,
            split_names=dataset.split_names,
            tokenizer_hash=tokenizer_hash,
        ),
        layout=_sizes(layout.geometry),
        codec=codec_metadata(codec, layout.geometry.itemsize),
        plan_hash=plan_hash(
            layout.row_start,
            dataset.length.astype(np.int32),
            dataset.input_ids,
            dataset.loss_mask,
            dataset.sample_id,
            dataset.split,
        ),
        golden_input_ids=golden.input_ids if golden else (),
    )


def _sizes(geometry: Geometry) -> LayoutSizes:
    return LayoutSizes(
        chunk_rows=geometry.chunk_rows,
        chunk_slots=geometry.chunk_slots,
        shard_rows=geometry.shard_rows,
        span_samples=geometry.span_samples,
    )


def _build(
    root: Path,
    spec: StoreSpec,
    dataset: TokenizedDataset,
    layout: Layout,
    norm_weight: npt.NDArray[np.float32],
    golden: Golden | None,
) -> None:
    arrays = Arrays.create(root)
    dtype = spec.model.dtype
    arrays.add_states(
        "hidden_states", layout.rows, layout.geometry, dtype, spec.codec, sharded=True
    )
    _write_samples(arrays, dataset, layout)
    _write_rows(arrays, "input_ids", dataset.input_ids, dataset.length, layout)
    _write_rows(arrays, "loss_mask", dataset.loss_mask, dataset.length, layout)
    _declare_completion(arrays, layout)
    _write_whole(arrays, "norm_weight", norm_weight, "hidden")
    _write_golden(arrays, golden, layout.geometry, spec)
    arrays.put_group("runs", {})
    arrays.put_attributes({"hsstore": seal(spec, root).model_dump(mode="json")})


def _write_samples(arrays: Arrays, dataset: TokenizedDataset, layout: Layout) -> None:
    _write_whole(arrays, "row_start", layout.row_start, "sample")
    _write_whole(arrays, "length", dataset.length.astype(np.int32), "sample")
    _write_whole(arrays, "sample_id", dataset.sample_id, "sample", "byte")
    _write_whole(arrays, "split", dataset.split, "sample")
    _write_whole(arrays, "metadata_end", dataset.metadata_end, "sample")
    _write_metadata(arrays, dataset.metadata)


def _write_whole(arrays: Arrays, name: str, values: npt.NDArray[Any], *dims: str) -> None:
    first = SAMPLES_A_CHUNK if dims[0] == "sample" else len(values)
    arrays.add(name, ArrayLayout(values.shape, values.dtype, dims, (first, *values.shape[1:])))
    arrays.write(name, slice(None), values)


def _write_metadata(arrays: Arrays, text: npt.NDArray[np.uint8]) -> None:
    """Write one shard of the array at a time; there may be gigabytes, or nothing at all."""
    chunks = max(-(-len(text) // METADATA_CHUNK_BYTES), 1)
    shard = min(METADATA_SHARD_BYTES, chunks * METADATA_CHUNK_BYTES)
    layout = ArrayLayout(text.shape, text.dtype, ("byte",), (METADATA_CHUNK_BYTES,), (shard,))
    arrays.add("metadata", layout)
    for start in range(0, len(text), shard):
        part = text[start : start + shard]
        arrays.write("metadata", slice(start, start + len(part)), part)


def _write_rows(
    arrays: Arrays,
    name: str,
    tokens: npt.NDArray[Any],
    length: npt.NDArray[np.int64],
    layout: Layout,
) -> None:
    """Scatter concatenated tokens to their rows, one shard of the array at a time."""
    shard_rows = min(ROWS_A_SHARD, -(-layout.rows // ROWS_A_CHUNK) * ROWS_A_CHUNK)
    arrays.add(
        name,
        ArrayLayout((layout.rows,), tokens.dtype, ("row",), (ROWS_A_CHUNK,), (shard_rows,)),
    )
    row_end = layout.row_start + length
    token_end = np.cumsum(length)
    for start in range(0, layout.rows, shard_rows):
        end = min(start + shard_rows, layout.rows)
        first = int(np.searchsorted(row_end, start, side="right"))
        last = int(np.searchsorted(layout.row_start, end))
        counts = length[first:last]
        token_start = int(token_end[first] - length[first]) if first < last else 0
        token_count = int(counts.sum())
        # Within a sample, rows and tokens advance together: one offset per sample.
        offset = layout.row_start[first:last] - (token_end[first:last] - counts)
        rows = np.arange(token_start, token_start + token_count) + np.repeat(offset, counts)
        here = (rows >= start) & (rows < end)
        window = np.zeros(end - start, dtype=tokens.dtype)
        window[rows[here] - start] = tokens[token_start : token_start + token_count][here]
        arrays.write(name, slice(start, end), window)


def _declare_completion(arrays: Arrays, layout: Layout) -> None:
    span = (layout.geometry.span_samples,)
    shape = (layout.samples,)
    for name, dtype in (("complete", np.bool_), ("failed", np.uint8), ("digest", np.uint64)):
        arrays.add(name, ArrayLayout(shape, dtype, ("sample",), span, compressed=False))


def _write_golden(
    arrays: Arrays, golden: Golden | None, geometry: Geometry, spec: StoreSpec
) -> None:
    rows = len(golden.input_ids) if golden else 0
    codec = codec_metadata(DEFAULT_CODEC, geometry.itemsize)
    arrays.add_states("golden", rows, geometry, spec.model.dtype, codec, sharded=False)
    if golden:
        arrays.write("golden", slice(None), golden.bits.view(native_dtype(spec.model.dtype)))
