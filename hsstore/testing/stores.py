"""Make small stores whose whole contents follow from the sample numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.create import LayoutOptions, create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.spec import Model, Norm
from hsstore.writer import BlockWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from hsstore.dtype import DTypeName
    from hsstore.location import Location
    from hsstore.spec import FailureReason
    from hsstore.store import Store

SMALL_LAYOUT = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=6)
"""So small that a few samples fill shards, blocks and spans."""


def make_model(dtype: DTypeName = "bfloat16", *, hidden: int = 16) -> Model:
    """Describe a model of 6 layers with three slots: layers 0 and 3, and the final state."""
    return Model(
        id="test/model",
        capture_hash="0123",
        num_layers=6,
        hidden=hidden,
        layers=(0, 3),
        final="post-norm",
        norm=Norm(epsilon=1e-5),
        dtype=dtype,
    )


def make_dataset(lengths: Sequence[int]) -> TokenizedDataset:
    """Tokenise nothing: samples of the given lengths, with ids, masks, splits and metadata."""
    return TokenizedDataset.from_samples(_sample(i, tokens) for i, tokens in enumerate(lengths))


def _sample(index: int, tokens: int) -> TokenizedSample:
    generator = np.random.default_rng(index)
    return TokenizedSample(
        sample_id=f"chat/{index}/ä",
        input_ids=generator.integers(0, 50_000, tokens, dtype=np.int32),
        loss_mask=generator.integers(0, 2, tokens, dtype=np.uint8),
        split="test" if index % 5 == 4 else "train",
        metadata={"index": index, "text": "größer"} if index % 2 else {},
    )


def make_store(
    path: Location,
    lengths: Sequence[int],
    *,
    model: Model | None = None,
    options: LayoutOptions = SMALL_LAYOUT,
) -> Store:
    """Create a store of samples of the given lengths, all pending."""
    model = model or make_model()
    norm_weight = np.linspace(0.5, 1.5, model.hidden, dtype=np.float32)
    return create_store(
        path, make_dataset(lengths), model, norm_weight=norm_weight, options=options
    )


def payload(store: Store, sample: int) -> npt.NDArray[Any]:
    """Return the states that a sample has in these stores: any bits, NaNs and -0.0 included.

    Returns
    -------
    uint16 or uint32 (length, slots, hidden)
    """
    shape = (int(store.length[sample]), store.spec.model.slots, store.spec.model.hidden)
    generator = np.random.default_rng([sample, 1])
    return generator.integers(0, 1 << store.bits.itemsize * 8, shape, dtype=store.bits)


def commit_block(
    store: Store,
    block: int,
    samples: Iterable[int],
    failed: Mapping[int, FailureReason] | None = None,
    *,
    run: str = "run",
) -> None:
    """Write the given samples of a block, in that order, keep its complete ones, and commit."""
    with ThreadPoolExecutor(1) as encoders:
        store.commit(start_block(store, block, samples, encoders, run), failed or {}, _owned)


def start_block(
    store: Store, block: int, samples: Iterable[int], encoders: ThreadPoolExecutor, run: str
) -> BlockWriter:
    """Open a block as a run does, its complete samples copied, and take the given samples."""
    place = store.layout.block(block)
    root, codec = store.location, store.codec
    writer = BlockWriter(root, store.layout, codec, place, run=run, encoders=encoders)
    complete = store.completion(slice(place.samples.start, place.samples.stop)).complete
    kept = [sample for sample, done in zip(place.samples, complete, strict=True) if done]
    writer.copy(kept, store.payload, store.length[kept].tolist())
    for sample in samples:
        writer.append(sample, payload(store, sample))
    return writer


def fill_store(store: Store) -> None:
    """Complete every sample that is pending."""
    for index in range(store.layout.blocks):
        block = store.layout.block(index)
        pending = store.completion(slice(block.samples.start, block.samples.stop)).pending
        if pending.any():
            commit_block(store, index, (block.samples.start + np.flatnonzero(pending)).tolist())


def _owned() -> None:
    """Say that the claim still stands."""
