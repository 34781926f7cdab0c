"""A tokenised dataset: what a store is planned from.

Everything about a training set that is known before the first request: token ids, loss masks,
sample ids, splits and metadata, concatenated over samples. No padding, no model.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import xxhash

from hsstore.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

MAX_SPLITS = 256
"""`split` is one byte a sample."""
SPILL_BYTES = 32 << 20
"""Of one array that are held in memory while samples are collected; what is more goes to TMPDIR."""
IDS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class TokenizedSample:
    """One training sequence."""

    sample_id: str
    """Unique in the dataset; at most 255 bytes of UTF-8, no NUL."""
    input_ids: npt.NDArray[np.int32]
    """Shape (T,), T >= 1."""
    loss_mask: npt.NDArray[np.uint8]
    """Shape (T,): 1 where the token itself is supervised. Unshifted, aligned with `input_ids`."""
    split: str = "train"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Any JSON object; stored with the sample."""


@dataclass(frozen=True, slots=True)
class TokenizedDataset:
    """Samples in dataset order, as flat arrays.

    Attributes
    ----------
    length : int64 (n,)
        Tokens of each sample, all >= 1.
    input_ids : int32 (sum(length),)
        All samples' tokens, concatenated.
    loss_mask : uint8 (sum(length),)
        1 = supervised; unshifted.
    sample_id : uint8 (n, w)
        UTF-8, zero padded; unique.
    split : uint8 (n,)
        Index into `split_names`.
    metadata : uint8 (m,)
        One JSON object a sample, concatenated; an empty object takes no bytes.
    metadata_end : int64 (n,)
        End offset of each sample's JSON in `metadata`.
    """

    length: npt.NDArray[np.int64]
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    sample_id: npt.NDArray[np.uint8]
    split: npt.NDArray[np.uint8]
    split_names: tuple[str, ...]
    metadata: npt.NDArray[np.uint8]
    metadata_end: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.length)

    @property
    def tokens(self) -> int:
        """Tokens of all samples together."""
        return len(self.input_ids)

    @classmethod
    def from_samples(cls, samples: Iterable[TokenizedSample]) -> TokenizedDataset:
        """Collect samples, in order, into flat arrays.

        Raises
        ------
        InputError
            No sample, a duplicate id, an empty sample, a mask of another length, or an id that
            cannot be stored.
        """
        with closing(_Builder()) as builder:
            for sample in samples:
                builder.add(sample)
            return builder.finish()

    def fingerprint(self) -> str:
        """Hash everything but the metadata: 32 hex digits of XXH3-128.

        Two datasets with equal fingerprints give the same store plan.
        """
        state = xxhash.xxh3_128()
        for values in (self.length, self.input_ids, self.loss_mask, self.sample_id, self.split):
            state.update(f"{values.dtype.str}{values.shape}".encode())
            state.update(np.ascontiguousarray(values).data)
        state.update(json.dumps(self.split_names).encode())
        return state.hexdigest()


class _Column:
    """Values, appended one after the other; many of them lie in a file without a name, not in memory.

    Parameters
    ----------
    dtype
        What `finish` makes of the bytes.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = dtype
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None

    def append(self, values: bytes | memoryview) -> None:
        self._buffer += values
        if len(self._buffer) >= SPILL_BYTES:
            self._spill()

    def finish(self) -> npt.NDArray[Any]:
        """Return all values; they are mapped where they are many."""
        if self._file is None:
            return np.frombuffer(self._buffer, self._dtype)
        self._spill()
        return np.memmap(self._file, self._dtype, mode="r")

    def close(self) -> None:
        """Close the file; what is mapped stays."""
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # until `close`
            left = memoryview(self._buffer)
            while left:
                left = left[self._file.write(left) :]
            left.release()
        except OSError as error:
            raise OutputError(
                f"cannot write the data's tokens to {tempfile.gettempdir()}: {error.strerror}; free "
                "space there, or name another directory in TMPDIR"
            ) from error
        self._buffer = bytearray()


class _Builder:
    """Takes samples one by one; 30 bytes of memory for each, and its id, whatever its length."""

    def __init__(self) -> None:
        self._ids = _Column(np.uint8)
        self._id_bytes = bytearray()
        self._id_hash = array("Q")
        self._length = array("q")
        self._input_ids = _Column(np.int32)
        self._loss_mask = _Column(np.uint8)
        self._split = bytearray()
        self._split_names: dict[str, int] = {}
        self._metadata = _Column(np.uint8)
        self._metadata_end = array("q")

    def add(self, sample: TokenizedSample) -> None:
        tokens = np.ascontiguousarray(sample.input_ids, dtype=np.int32)
        mask = np.ascontiguousarray(sample.loss_mask, dtype=np.uint8)
        if tokens.ndim != 1 or not tokens.size:
            raise InputError(f"sample {sample.sample_id!r}: input_ids is empty or not a list")
        if mask.shape != tokens.shape:
            raise InputError(
                f"sample {sample.sample_id!r}: loss_mask has {mask.size} entries, "
                f"input_ids has {tokens.size}"
            )
        self._add_id(sample.sample_id)
        self._add_split(sample.split)
        self._length.append(tokens.size)
        self._input_ids.append(tokens.data)
        self._loss_mask.append(mask.data)
        self._add_metadata(sample.metadata)

    def _add_id(self, sample_id: str) -> None:
        encoded = sample_id.encode()
        if not 0 < len(encoded) < 256 or b"\0" in encoded:
            raise InputError(f"sample id {sample_id!r}: must be 1 to 255 bytes without NUL")
        self._ids.append(encoded)
        self._id_bytes.append(len(encoded))
        self._id_hash.append(xxhash.xxh3_64_intdigest(encoded))

    def _add_split(self, split: str) -> None:
        number = self._split_names.setdefault(split, len(self._split_names))
        if number >= MAX_SPLITS:
            raise InputError(f"split {split!r}: at most {MAX_SPLITS} splits are possible")
        self._split.append(number)

    def _add_metadata(self, metadata: Mapping[str, Any]) -> None:
        text = b""
        if metadata:
            text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()
            self._metadata.append(text)
        self._metadata_end.append(len(text) + (self._metadata_end[-1] if self._metadata_end else 0))

    def finish(self) -> TokenizedDataset:
        if not self._length:
            raise InputError("the dataset has no sample")
        return TokenizedDataset(
            length=np.array(self._length, dtype=np.int64),
            input_ids=self._input_ids.finish(),
            loss_mask=self._loss_mask.finish(),
            sample_id=self._pack_ids(),
            split=np.array(self._split, dtype=np.uint8),
            split_names=tuple(self._split_names),
            metadata=self._metadata.finish(),
            metadata_end=np.array(self._metadata_end, dtype=np.int64),
        )

    def close(self) -> None:
        for column in (self._ids, self._input_ids, self._loss_mask, self._metadata):
            column.close()

    def _pack_ids(self) -> npt.NDArray[np.uint8]:
        """Pad the ids to equal width, and refuse duplicates."""
        ids, size = self._ids.finish(), np.array(self._id_bytes, dtype=np.uint8)
        packed = np.zeros((len(size), int(size.max())), np.uint8)
        # In C order, the places that ids take in the padded table are the ids one after the other.
        for start in range(0, len(size), IDS_AT_ONCE):
            part = slice(start, start + IDS_AT_ONCE)
            taken = np.arange(packed.shape[1]) < size[part, None]
            count = int(size[part].sum(dtype=np.int64))
            packed[part][taken], ids = ids[:count], ids[count:]
        _refuse_duplicates(packed, np.array(self._id_hash, dtype=np.uint64))
        return packed


def _refuse_duplicates(packed: npt.NDArray[np.uint8], id_hash: npt.NDArray[np.uint64]) -> None:
    order = np.argsort(id_hash, kind="stable")
    sorted_hash = id_hash[order]
    for at in np.flatnonzero(sorted_hash[1:] == sorted_hash[:-1]).tolist():
        one, other = packed[order[at]], packed[order[at + 1]]
        if np.array_equal(one, other):
            sample_id = bytes(one).rstrip(b"\0").decode()
            raise InputError(f"sample id {sample_id!r}: duplicate")
