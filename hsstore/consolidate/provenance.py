"""What the destination keeps of its making: the record of a run, and where each sample came from.

It is written before the store has its name. So a consolidation that was killed can go on: its choice is made
once, whatever becomes of the sources meanwhile.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from hsstore import run_record
from hsstore.arrays import SAMPLES_A_CHUNK, ArrayLayout, Arrays
from hsstore.consolidate.request import Request
from hsstore.create import Golden
from hsstore.dtype import bits_dtype, native_dtype
from hsstore.errors import CorruptStoreError, RefusedError
from hsstore.spec import FINISHED
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.consolidate.choose import Samples
    from hsstore.consolidate.sources import Source
    from hsstore.spec import RunRecord

ENGINE = "hsstore consolidate"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The choice that a destination was made from.

    Attributes
    ----------
    source : uint16 (n,)
    sample : int64 (n,)
        Index in that source.
    digest : uint64 (n,)
        Of the states when the choice was made.
    """

    record: RunRecord
    request: Request
    source: npt.NDArray[np.uint16]
    sample: npt.NDArray[np.int64]
    digest: npt.NDArray[np.uint64]


def begin_record(request: Request, sources: Sequence[Source], samples: Samples) -> RunRecord:
    """Describe the making of a destination that begins now."""
    taken = np.bincount(samples.source, minlength=len(sources)).tolist()
    options = {
        "request": request.model_dump(mode="json"),
        "sources": [_describe(source, taken[source.number]) for source in sources],
    }
    capture_hash = sources[0].store.spec.model.capture_hash
    return run_record.begin_record(str(uuid.uuid4()), capture_hash, ENGINE, options)


def _describe(source: Source, taken: int) -> dict[str, Any]:
    spec = source.store.spec
    return {
        "path": str(source.path),
        "store": spec.store,
        "model": spec.model.id,
        "created": spec.created,
        "created_by": spec.created_by,
        "dataset_fingerprint": spec.dataset.fingerprint,
        "samples": len(source.store),
        "complete": int(source.complete.sum()),
        "taken": taken,
        "runs": [record.model_dump(mode="json") for record in source.store.runs()],
    }


def write(root: Path, record: RunRecord, samples: Samples) -> None:
    """Put the record and the choice into a store that is being made.

    The run is called as the store: what others who would make it have put under its URL is not taken for it.
    """
    store = Store.open(root)
    record = record.model_copy(update={"run": store.spec.store})
    store.record_run(record)
    arrays = Arrays.open(root)
    columns: dict[str, npt.NDArray[Any]] = {
        "source": samples.source,
        "sample": samples.sample,
        "digest": samples.digest,
    }
    for name, values in columns.items():
        path = f"runs/{record.run}/{name}"
        layout = ArrayLayout(values.shape, values.dtype, ("sample",), (SAMPLES_A_CHUNK,))
        arrays.add(path, layout)
        arrays.write(path, slice(None), values)


def read(store: Store) -> Recorded:
    """Read what a destination was made from.

    Raises
    ------
    RefusedError
        It was not made by a consolidation.
    CorruptStoreError
        Its record is damaged.
    """
    made = [record for record in store.runs() if record.engine == ENGINE]
    if not made:
        raise RefusedError(
            f"{store.location} exists, and no consolidation has made it: name a destination that is not there"
        )
    record = next((one for one in made if one.run == store.spec.store), made[0])
    try:
        request = Request.model_validate(record.options["request"])
    except (KeyError, ValidationError) as error:
        raise CorruptStoreError(f"{store.location}: the record of its making: {error}") from None
    source, sample, digest = (
        store.plan_array(f"runs/{record.run}/{name}") for name in ("source", "sample", "digest")
    )
    return Recorded(record, request, source, sample, digest)


def open_record(store: Store, record: RunRecord) -> RunRecord:
    """Say that the making goes on, where it was finished but for samples that are pending."""
    if record.result is not None:
        record = record.model_copy(update={"ended": None, "result": None})
        store.record_run(record)
    return record


def end_record(store: Store, record: RunRecord) -> None:
    """Say that the making has ended."""
    store.record_run(run_record.end_record(record, FINISHED))


def golden_of(sources: Sequence[Source]) -> tuple[Golden | None, tuple[str, ...]]:
    """Return the golden states of the first source that has some, and what others say to them."""
    carried, notes = None, []
    for source in sources:
        spec = source.store.spec
        if not spec.golden_input_ids:
            continue
        bits = source.store.plan_array("golden").view(bits_dtype(spec.model.dtype))
        if carried is None:
            carried = Golden(spec.golden_input_ids, bits)
        elif spec.golden_input_ids != carried.input_ids:
            notes.append(f"{source.path}: its golden states are of other tokens and are not kept")
        elif not np.array_equal(bits, carried.bits):
            differ = _largest_difference(carried.bits, bits, native_dtype(spec.model.dtype))
            notes.append(
                f"{source.path}: its golden states differ by {differ:.2%} (median row, worst slot) from "
                "those that are kept"
            )
    return carried, tuple(notes)


def _largest_difference(
    one: npt.NDArray[Any], other: npt.NDArray[Any], dtype: np.dtype[Any]
) -> float:
    a, b = (bits.view(dtype).astype(np.float64) for bits in (one, other))
    size = np.maximum(np.linalg.norm(a, axis=2), np.finfo(np.float64).tiny)
    return float(np.median(np.linalg.norm(b - a, axis=2) / size, axis=0).max())
