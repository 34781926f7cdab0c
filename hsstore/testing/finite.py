"""Fill stores as a model does: states that are finite, and no row all zero."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.spec import FINISHED, FailureReason, RunRecord
from hsstore.testing.stores import make_store
from hsstore.writer import BlockWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from hsstore.location import Location
    from hsstore.store import Store

MIXED_LENGTHS = (3, 4, 5, 1, 18, 2, 9, 4, 4, 1, 7, 3, 2)
"""With shards of 16 rows and spans of 6 samples: sample 4 is longer than a shard."""
MIXED_PENDING = (8, 11)
MIXED_FAILED = (9,)
MIXED_COMPLETE = tuple(
    sample
    for sample in range(len(MIXED_LENGTHS))
    if sample not in MIXED_PENDING and sample not in MIXED_FAILED
)


def finite_states(store: Store, sample: int) -> npt.NDArray[Any]:
    """Return the bfloat16 bits of a sample's states, (length, slots, hidden)."""
    shape = (int(store.length[sample]), store.spec.model.slots, store.spec.model.hidden)
    values = np.random.default_rng(sample).normal(size=shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def commit_states(
    store: Store,
    states: Mapping[int, npt.NDArray[Any]],
    failed: Mapping[int, FailureReason] | None = None,
) -> None:
    """Commit samples, and nothing else of their blocks."""
    failed = failed or {}
    with ThreadPoolExecutor(1) as encoders:
        for index in sorted({store.layout.block_of(sample) for sample in [*states, *failed]}):
            block = store.layout.block(index)
            writer = BlockWriter(
                store.location, store.layout, store.codec, block, run="run", encoders=encoders
            )
            for sample in block.samples:
                if sample in states:
                    writer.append(sample, states[sample])
            reasons = {sample: failed[sample] for sample in block.samples if sample in failed}
            store.commit(writer, reasons, lambda: None)


def make_mixed_store(path: Location) -> Store:
    """Create a store with complete, pending and failed samples, and the record of a run."""
    store = make_store(path, MIXED_LENGTHS)
    store.record_run(make_run_record("r1", "2026-01-01T00:00:00+00:00", ended=True))
    commit_states(
        store,
        {sample: finite_states(store, sample) for sample in MIXED_COMPLETE},
        dict.fromkeys(MIXED_FAILED, FailureReason.BAD_DATA),
    )
    return store


def make_run_record(run: str, started: str, *, ended: bool) -> RunRecord:
    """Describe a run that ended by itself, or one that was killed."""
    return RunRecord(
        run=run,
        started=started,
        ended="2026-01-02T00:00:00+00:00" if ended else None,
        result=FINISHED if ended else None,
        host="host",
        pid=1,
        hsstore_version="0",
        capture_hash="0123",
        engine="embedded",
        engine_version="0",
        server_instance="0",
        server_flags={},
        options={},
    )
