"""A tokenised dataset: what a store is planned from.

Everything about a training set that is known before the first request: token ids, loss masks,
sample ids, splits and metadata, concatenated over samples. No padding, no model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

MAX_SPLITS = 256
"""`split` is one byte a sample."""


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
        builder = _Builder()
        for sample in samples:
            builder.add(sample)
        return builder.finish()

    def fingerprint(self) -> str:
        """Hash everything but the metadata: 32 hex digits of XXH3-128.

        Two datasets with equal fingerprints give the same store plan.
        """
        state = xxhash.xxh3_128()
        for array in (self.length, self.input_ids, self.loss_mask, self.sample_id, self.split):
            state.update(f"{array.dtype.str}{array.shape}".encode())
            state.update(np.ascontiguousarray(array).data)
        state.update(json.dumps(self.split_names).encode())
        return state.hexdigest()


class _Builder:
    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._input_ids: list[npt.NDArray[np.int32]] = []
        self._loss_mask: list[npt.NDArray[np.uint8]] = []
        self._split: list[int] = []
        self._split_names: dict[str, int] = {}
        self._metadata = bytearray()
        self._metadata_end: list[int] = []

    def add(self, sample: TokenizedSample) -> None:
        self._add_id(sample.sample_id)
        tokens = np.asarray(sample.input_ids, dtype=np.int32)
        mask = np.asarray(sample.loss_mask, dtype=np.uint8)
        if tokens.ndim != 1 or not tokens.size:
            raise InputError(f"sample {sample.sample_id!r}: input_ids is empty or not a list")
        if mask.shape != tokens.shape:
            raise InputError(
                f"sample {sample.sample_id!r}: loss_mask has {mask.size} entries, "
                f"input_ids has {tokens.size}"
            )
        self._input_ids.append(tokens)
        self._loss_mask.append(mask)
        self._split.append(self._split_names.setdefault(sample.split, len(self._split_names)))
        if sample.metadata:
            text = json.dumps(sample.metadata, ensure_ascii=False, separators=(",", ":"))
            self._metadata += text.encode()
        self._metadata_end.append(len(self._metadata))

    def _add_id(self, sample_id: str) -> None:
        encoded = sample_id.encode()
        if not 0 < len(encoded) < 256 or b"\0" in encoded:
            raise InputError(f"sample id {sample_id!r}: must be 1 to 255 bytes without NUL")
        if encoded in self._ids:
            raise InputError(f"sample id {sample_id!r}: duplicate")
        self._ids[encoded] = len(self._ids)

    def finish(self) -> TokenizedDataset:
        if not self._ids:
            raise InputError("the dataset has no sample")
        if len(self._split_names) > MAX_SPLITS:
            raise InputError(f"{len(self._split_names)} splits; at most {MAX_SPLITS} are possible")
        width = max(map(len, self._ids))
        packed = np.array(list(self._ids), dtype=f"S{width}")
        return TokenizedDataset(
            length=np.array([len(tokens) for tokens in self._input_ids], dtype=np.int64),
            input_ids=np.concatenate(self._input_ids),
            loss_mask=np.concatenate(self._loss_mask),
            sample_id=packed.view(np.uint8).reshape(len(packed), width),
            split=np.array(self._split, dtype=np.uint8),
            split_names=tuple(self._split_names),
            metadata=np.frombuffer(bytes(self._metadata), dtype=np.uint8),
            metadata_end=np.array(self._metadata_end, dtype=np.int64),
        )
