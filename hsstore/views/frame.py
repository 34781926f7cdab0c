"""The samples of a store as a Dask data frame: one row each, one partition a span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.views.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import dask.dataframe as dd
    import numpy.typing as npt
    import pandas as pd

    from hsstore.store import Completion, Store

STATUS = ("complete", "failed", "pending")
NO_PANDAS = (
    "Store.to_dataframe needs pandas, which is not installed: pip install 'hsstore[dataframe]'"
)


def to_dataframe(store: Store, *, pending: bool = False) -> dd.DataFrame:
    """Return one row for each sample that is complete now, or for all of the plan.

    The index is the sample's number. A partition is a span of the store: a whole number of blocks and
    shards. Columns that nobody asks for are not read.

    Parameters
    ----------
    pending : bool
        Take pending and failed samples too. Their lengths are known; their states are not there.

    Returns
    -------
    dask.dataframe.DataFrame
        `sample_id`; `split`; `tokens`; `supervised`, the tokens with a loss mask of 1; `block`, as in
        `SampleBlock`; `status`, one of complete, failed and pending; `failure`, the reason or empty.

    Raises
    ------
    ImportError
        There is no pandas.
    """
    try:
        import dask.dataframe as dd  # noqa: PLC0415  # an extra, slow to import
    except ImportError as error:
        raise ImportError(NO_PANDAS) from error
    completion = store.completion()
    spans = [store.layout.span_slice(span) for span in range(store.layout.spans)]
    parts = [SpanPart.of(store, span, completion, everything=pending) for span in spans]
    divisions = (*[span.start for span in spans], len(store) - 1)
    none = SpanPart.of(store, slice(0, 0), completion, everything=False)
    frame: dd.DataFrame = dd.from_map(
        read_span, parts, meta=read_span(none), divisions=divisions, label="hsstore-samples"
    )
    return frame


@dataclass(frozen=True, slots=True, eq=False)
class SpanPart:
    """The samples of one span, which shares no block and no shard with another one.

    Attributes
    ----------
    samples : int64 (n,)
        Indices of those that are wanted.
    status : int8 (n,)
        Index into `STATUS`.
    failed : uint8 (n,)
        Why they failed, if they did.
    block : int64 (n,)
        Number of their block in the store's layout.
    """

    source: Source
    samples: npt.NDArray[np.int64]
    status: npt.NDArray[np.int8]
    failed: npt.NDArray[np.uint8]
    block: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls, store: Store, where: slice, completion: Completion, *, everything: bool
    ) -> SpanPart:
        """Choose the complete samples of a span, or all."""
        complete = completion.complete[where]
        here = np.arange(len(complete)) if everything else np.flatnonzero(complete)
        failed = completion.failed[where][here]
        status = np.where(complete[here], 0, np.where(failed > 0, 1, 2)).astype(np.int8)
        samples = where.start + here
        block = np.searchsorted(store.layout.block_sample, samples, side="right") - 1
        return cls(Source.of(store), samples, status, failed, block)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Name equal parts equally."""
        return (
            self.source.path,
            self.source.uuid,
            self.samples.tobytes(),
            self.status.tobytes(),
            self.failed.tobytes(),
        )

    def of_plan(self, store: Store, name: str) -> npt.NDArray[Any]:
        """Read an array of the plan that has one value, or row, for each sample."""
        if not self.samples.size:
            return store.plan_array(name, slice(0, 0))
        first = int(self.samples[0])
        return store.plan_array(name, slice(first, int(self.samples[-1]) + 1))[self.samples - first]


def read_span(part: SpanPart, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Make the data frame of a span, with the columns that are asked for."""
    import pandas as pd  # noqa: PLC0415  # an extra

    store = part.source.open()
    wanted = _COLUMNS if columns is None else columns
    return pd.DataFrame(
        {name: _COLUMNS[name](part, store) for name in wanted},
        index=pd.Index(part.samples, name="sample"),
    )


def _sample_id(part: SpanPart, store: Store) -> Any:  # noqa: ANN401  # of pandas
    padded = part.of_plan(store, "sample_id")
    return _strings([row.tobytes().rstrip(b"\0").decode() for row in padded])


def _split(part: SpanPart, store: Store) -> Any:  # noqa: ANN401
    return _category(part.of_plan(store, "split"), store.spec.dataset.split_names)


def _tokens(part: SpanPart, store: Store) -> npt.NDArray[np.int32]:
    return part.of_plan(store, "length")


def _supervised(part: SpanPart, store: Store) -> npt.NDArray[np.int64]:
    """Count supervised tokens; the masks of one block are in memory at a time."""
    starts, lengths = part.of_plan(store, "row_start"), part.of_plan(store, "length")
    counts = np.zeros(len(starts), np.int64)
    for block in np.unique(part.block).tolist():
        here = np.flatnonzero(part.block == block)
        first, stop = int(starts[here[0]]), int(starts[here[-1]] + lengths[here[-1]])
        mask = store.plan_array("loss_mask", slice(first, stop))
        for at in here.tolist():
            begin = int(starts[at]) - first
            counts[at] = np.count_nonzero(mask[begin : begin + int(lengths[at])])
    return counts


def _block(part: SpanPart, store: Store) -> npt.NDArray[np.int64]:  # noqa: ARG001  # as the others
    return part.block


def _status(part: SpanPart, store: Store) -> Any:  # noqa: ANN401, ARG001
    return _category(part.status, STATUS)


def _failure(part: SpanPart, store: Store) -> Any:  # noqa: ANN401
    failed = np.where(part.status == STATUS.index("failed"), part.failed, 0)
    return _strings([store.spec.failure_label(code) if code else "" for code in failed.tolist()])


def _strings(values: list[str]) -> Any:  # noqa: ANN401
    import pandas as pd  # noqa: PLC0415

    return pd.array(values, dtype="string[pyarrow]")


def _category(codes: npt.NDArray[np.integer[Any]], names: Sequence[str]) -> Any:  # noqa: ANN401
    import pandas as pd  # noqa: PLC0415

    return pd.Categorical.from_codes(codes, categories=pd.Index(list(names)))


_COLUMNS: dict[str, Callable[[SpanPart, Store], Any]] = {
    "sample_id": _sample_id,
    "split": _split,
    "tokens": _tokens,
    "supervised": _supervised,
    "block": _block,
    "status": _status,
    "failure": _failure,
}
