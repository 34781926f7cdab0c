"""One store: its plan, its completion arrays, its samples, and the commit of a block."""

from __future__ import annotations

import json
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from hsstore.arrays import Arrays
from hsstore.codec import DEFAULT_CODEC, ChunkCodec, codec_metadata, parse_codec
from hsstore.dtype import bits_dtype, native_dtype
from hsstore.errors import CorruptStoreError, NotExtractedError, RefusedError
from hsstore.index import SampleIndex, as_text
from hsstore.layout import plan_layout
from hsstore.location import locate, require_local
from hsstore.reader import PayloadReader
from hsstore.sample import Completion, Sample
from hsstore.seal import unseal
from hsstore.spans import Span, look_again, read_spans, spans_of
from hsstore.spec import FailureReason, RunRecord, StoreSpec
from hsstore.writer import SealableBlock, refuse_to_lose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import dask.array
    import dask.dataframe
    import numpy.typing as npt
    from dask.delayed import Delayed

    from hsstore.layout import Layout
    from hsstore.location import Location
    from hsstore.views.array import Column


__all__ = ["Completion", "Sample", "Store"]


class Store:
    """An open store. Reading is thread-safe; commits come from the owner of the span."""

    def __init__(self, location: Location, arrays: Arrays, spec: StoreSpec) -> None:
        self.location = location
        """Where it is: a path, or a URL."""
        self.spec = spec
        self._arrays = arrays
        self._commit_lock = Lock()

    @classmethod
    def open(cls, path: str | Location) -> Store:
        """Open a store, by its path or its URL.

        Raises
        ------
        InputError
            There is no store, or one of a format that this version does not know; or the URL is refused.
        CorruptStoreError
            Its metadata is damaged.
        RefusedError
            Its states are encoded with a codec that this version does not have.
        UnreachableError
            An object store does not answer.
        """
        location = locate(path)
        arrays = Arrays.open(location)
        spec = unseal(location, arrays.attributes.get("hsstore"))
        try:
            parse_codec(spec.codec)
        except RefusedError as error:
            raise RefusedError(f"{location}: {error}") from None
        return cls(location, arrays, spec)

    @property
    def path(self) -> Path:
        """The store's directory, for what can do with a directory only: InputError under a URL."""
        return require_local(self.location, "hsstore does this on")

    def __len__(self) -> int:
        """Count the samples of the plan, complete or not."""
        return self.spec.dataset.samples

    def __getitem__(self, index: int) -> Sample:
        """Read one sample, by its index in dataset order; negative ones count from the end.

        Raises
        ------
        IndexError
        NotExtractedError
            The sample is pending, or it failed.
        CorruptStoreError
            Its payload does not pass the crc.
        """
        sample = range(len(self))[index]
        states = self.states(sample)
        return Sample(
            index=sample,
            sample_id=self.sample_id(sample),
            input_ids=self.input_ids(sample),
            loss_mask=self.loss_mask(sample),
            hidden_states=states,
        )

    @property
    def runs_path(self) -> Path:
        """The directory beside the store for claims and logs; not part of the data."""
        return self.path.with_name(self.path.name + ".runs")

    # --- the plan -----------------------------------------------------------------------------

    @cached_property
    def length(self) -> npt.NDArray[np.int32]:
        """Tokens of each sample, shape (n,)."""
        return self._arrays.read("length")

    @cached_property
    def layout(self) -> Layout:
        """Where every sample lies: planned from all lengths, which readers need not."""
        return plan_layout(self.length, self.spec.geometry)

    @cached_property
    def index(self) -> SampleIndex:
        """Where single samples lie: what is asked for is read, at the same cost in any store."""
        return SampleIndex(self.spec.geometry, self._arrays.read)

    def input_ids(self, sample: int) -> npt.NDArray[np.int32]:
        """Tokens of a sample, shape (T,)."""
        return self._row_array("input_ids", sample)

    def input_ids_of(self, samples: Sequence[int]) -> dict[int, npt.NDArray[np.int32]]:
        """Tokens of samples of one block, ascending, in one read of all rows between them."""
        starts = [self.index.row_start[sample] for sample in samples]
        ends = [start + self.index.length[s] for s, start in zip(samples, starts, strict=True)]
        tokens = self._arrays.read("input_ids", slice(starts[0], ends[-1]))
        return {
            sample: tokens[start - starts[0] : end - starts[0]]
            for sample, start, end in zip(samples, starts, ends, strict=True)
        }

    def loss_mask(self, sample: int) -> npt.NDArray[np.uint8]:
        """Loss mask of a sample, shape (T,): 1 where the token itself is supervised."""
        return self._row_array("loss_mask", sample)

    def sample_id(self, sample: int) -> str:
        """Return the dataset's own id of a sample."""
        return self.index.sample_id(sample)

    def sample_ids(self, where: slice = slice(None)) -> npt.NDArray[np.bytes_]:
        """Return the ids of samples as UTF-8, shape (n,)."""
        return as_text(self._arrays.read("sample_id", where))

    def split(self, sample: int) -> str:
        """Return the split that a sample belongs to."""
        split = int(self._arrays.read("split", slice(sample, sample + 1))[0])
        return self.spec.dataset.split_names[split]

    def metadata(self, sample: int) -> dict[str, Any]:
        """Return the JSON object that came with a sample."""
        ends = self._arrays.read("metadata_end", slice(max(sample - 1, 0), sample + 1))
        start = int(ends[0]) if sample else 0
        text = self._arrays.read("metadata", slice(start, int(ends[-1]))).tobytes()
        value: dict[str, Any] = json.loads(text) if text else {}
        return value

    def plan_array(self, name: str, where: slice = slice(None)) -> npt.NDArray[Any]:
        """Read one of the arrays that the plan fixed, such as `row_start` or `norm_weight`."""
        return self._arrays.read(name, where)

    def missing_chunks(self, name: str) -> int:
        """Count the files of a plan array that are not there, and read as fill values."""
        return self._arrays.missing_chunks(name)

    def _row_array(self, name: str, sample: int) -> npt.NDArray[Any]:
        start = self.index.row_start[sample]
        return self._arrays.read_rows(name, slice(start, start + self.index.length[sample]))

    # --- completion and payload ---------------------------------------------------------------

    def completion(self, where: slice = slice(None)) -> Completion:
        """Read the completion arrays of some samples, fresh; the bitmap first."""
        look_again(self.location)
        complete = self._spans("complete", where)
        digest = self._spans("digest", where)
        return Completion(complete, self._spans("failed", where), digest)

    def _spans(self, name: str, where: slice) -> npt.NDArray[Any]:
        return read_spans(self.location, name, len(self), self.spec.layout.span_samples, where)

    @cached_property
    def payload(self) -> PayloadReader:
        """The reader of raw states; it does not look at the bitmap."""
        return PayloadReader(
            self.location, self.index, self.index.length, self.spec.model.dtype, codec=self.codec
        )

    @cached_property
    def codec(self) -> ChunkCodec:
        """What encodes and decodes the chunks of `hidden_states`."""
        model = self.spec.model
        return ChunkCodec(self.spec.geometry.chunk_shape, model.dtype, self.spec.codec)

    def states(
        self,
        index: int,
        *,
        rows: slice = slice(None),
        slots: Sequence[int] | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Read the states of a sample, or a part of them: only the chunks in it are read.

        Parameters
        ----------
        rows : slice
            Of the sample's rows, in steps of 1.
        slots : ints, optional
            Which slots, in this order; all if it is left out.
        out : (rows, slots, hidden), optional
            Where to put them: states of the store's dtype, or their raw bits.

        Returns
        -------
        bfloat16, float16 or float32 (rows, slots, hidden)
            In the memory of `out`, if it was given; otherwise the memory is used again for other
            samples when this array and all its views are gone.

        Raises
        ------
        IndexError
        NotExtractedError
            The sample is pending, or it failed.
        CorruptStoreError
            Its payload does not pass the crc.
        """
        sample = range(len(self))[index]
        self.require_complete(sample)
        bits = None if out is None else out.view(self.bits)
        read = self.payload.read(sample, rows=rows, slots=slots, out=bits)
        return read.view(native_dtype(self.spec.model.dtype))

    @property
    def bits(self) -> np.dtype[Any]:
        """The dtype of raw bit patterns: uint16 or uint32."""
        return bits_dtype(self.spec.model.dtype)

    def require_complete(self, sample: int) -> None:
        """Raise NotExtractedError unless the bit of a sample is set."""
        here = slice(sample, sample + 1)
        if self._spans("complete", here)[0]:
            return
        name = f"sample {sample} ({self.sample_id(sample)})"
        if code := int(self._spans("failed", here)[0]):
            raise NotExtractedError(f"{name} failed: {self.spec.failure_label(code)}")
        raise NotExtractedError(f"{name} is pending: run hsstore extract")

    # --- Dask ---------------------------------------------------------------------------------

    def to_dask_array(
        self,
        column: Column = "hidden_states",
        *,
        slots: Sequence[int] | None = None,
        dtype: npt.DTypeLike | None = np.float32,
        padding: bool = False,
    ) -> dask.array.Array:
        """Return the rows of the samples that are complete now; see `hsstore.views.to_dask_array`."""
        from hsstore.views import to_dask_array  # noqa: PLC0415  # opening a store needs no Dask

        return to_dask_array(self, column, slots=slots, dtype=dtype, padding=padding)

    def to_delayed(self) -> list[Delayed]:
        """Return a Dask task for each block with complete samples; see `hsstore.views.to_delayed`."""
        from hsstore.views import to_delayed  # noqa: PLC0415

        return to_delayed(self)

    def to_dataframe(self, *, pending: bool = False) -> dask.dataframe.DataFrame:
        """Return one row for each complete sample, or for all; see `hsstore.views.to_dataframe`."""
        from hsstore.views import to_dataframe  # noqa: PLC0415

        return to_dataframe(self, pending=pending)

    # --- commit -------------------------------------------------------------------------------

    def commit(
        self,
        writer: SealableBlock,
        failed: Mapping[int, FailureReason],
        check_claim: Callable[[], None],
    ) -> set[int]:
        """Make a block durable, then set its bits: the only way to set one.

        The order is the promise: shard data, fsync, claim, rename, fsync of the directory, then
        `digest` and `failed`, then `complete`. A crash in between leaves pending samples, never
        a set bit without its payload. In an object store a shard is there when its upload ends, and each
        of these writes replaces what was read here, or is refused; so are bits that a dead run has under way.

        Parameters
        ----------
        failed : dict
            Samples of the block that are given up, and why.
        check_claim : callable
            Raises when this run no longer owns the span. Asked before each step that others see: who hangs
            in one and was taken for dead meanwhile must not write over what his heir has done.

        Returns
        -------
        set
            The samples whose bits were set.

        Raises
        ------
        RefusedError
            Somebody else writes the span: nothing of his is written over.
        """
        size = self.spec.layout.span_samples
        digests = writer.seal()
        with self._commit_lock:
            check_claim()
            state = Span(self.location, writer.block.span, size)
            refuse_to_lose(writer, state)
            state.outdate(writer.block.samples)
            writer.publish()
            for sample, digest in digests.items():
                state.digest[sample - state.first] = digest
                state.complete[sample - state.first] = True
            for sample, reason in failed.items():
                state.failed[sample - state.first] = reason
            check_claim()
            state.write("digest", "failed")
            check_claim()
            state.write("complete")
        return set(digests)

    def reset_failed(self, samples: npt.NDArray[np.int64]) -> None:
        """Make failed samples pending again."""
        with self._commit_lock:
            for state, inside in spans_of(self.location, self.spec.layout.span_samples, samples):
                state.failed[inside] = FailureReason.NONE
                state.write_cleared("failed")

    def withdraw(self, samples: npt.NDArray[np.int64]) -> None:
        """Make complete samples pending again: their states turned out to be wrong.

        The bit goes first. What is left of them in a shard is dropped when its block is reopened.
        """
        with self._commit_lock:
            for state, inside in spans_of(self.location, self.spec.layout.span_samples, samples):
                state.complete[inside] = False
                state.write_cleared("complete")
                state.digest[inside] = 0
                state.write_cleared("digest")

    # --- runs ---------------------------------------------------------------------------------

    def record_run(self, record: RunRecord, golden: npt.NDArray[Any] | None = None) -> None:
        """Write, or write anew, the group of a run.

        Parameters
        ----------
        golden : uint16 or uint32 (rows, slots, hidden), optional
            Raw bits of the run's own golden states; given once.
        """
        path = f"runs/{record.run}"
        self._arrays.put_group(path, {"hsstore_run": record.model_dump(mode="json")})
        if golden is not None:
            dtype = self.spec.model.dtype
            name = f"{path}/golden"
            geometry = self.spec.geometry
            codec = codec_metadata(DEFAULT_CODEC, geometry.itemsize)
            self._arrays.add_states(name, len(golden), geometry, dtype, codec, sharded=False)
            self._arrays.write(name, slice(None), golden.view(native_dtype(dtype)))

    def runs(self) -> list[RunRecord]:
        """Return the records of all runs, oldest first.

        Raises
        ------
        CorruptStoreError
        """
        records = []
        for run, attributes in self._arrays.group_attributes("runs").items():
            try:
                record = attributes.get("hsstore_run")
                # A newer version may say more of its run: that is no damage.
                records.append(RunRecord.model_validate(record, extra="ignore"))
            except ValidationError as error:
                raise CorruptStoreError(f"the record of run {run} is damaged: {error}") from None
        return sorted(records, key=lambda record: record.started)
