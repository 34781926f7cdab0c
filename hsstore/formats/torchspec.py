"""TorchSpec's offline files, schema version 1: one `.pt` a sample.

=========================  ==================  ====================================
`input_ids`                int64 [T]
`hidden_states`            [T, layers * H]     the CAPTURED layers
`last_hidden_states`       [T, H]              the final state; `dataset.json` says whether before the norm
`data_id`                  str
`packed_loss_mask`         str                 lengths of runs, of zeros first: 0,0,1,1,1,0 is "2,3,1"
`metadata`                 dict
=========================  ==================  ====================================
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import numpy as np

from hsstore.errors import InputError
from hsstore.formats.sample import ForeignSample, ForeignTokens, join, take, take_matrix, take_row

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.formats.sample import Content, Hints


class TorchSpec:
    """See the module."""

    name: Final = "torchspec"

    def path(self, row: int, sample_id: str) -> str:  # noqa: ARG002  # of the protocol
        """Return `samples/SHA1.pt`, the hash being that of the id."""
        return f"samples/{hashlib.sha1(sample_id.encode(), usedforsecurity=False).hexdigest()}.pt"

    def write_sample(self, sample: ForeignSample) -> Content:
        """Return the values of a file."""
        if sample.final == "none":
            raise InputError("TorchSpec's files need the final state")
        mask = np.ones(len(sample.input_ids)) if sample.loss_mask is None else sample.loss_mask
        return {
            "input_ids": sample.input_ids.astype(np.int64),
            "hidden_states": sample.aux,
            "last_hidden_states": sample.last,
            "data_id": sample.sample_id,
            "packed_loss_mask": pack_mask(mask.astype(np.uint8)),
            "metadata": {},
        }

    def read_tokens(self, content: Content) -> ForeignTokens:
        """Return tokens, mask and id of a file."""
        ids = take_row(content, "input_ids", np.int32)
        packed = content.get("packed_loss_mask")
        mask = None if packed is None else unpack_mask(str(packed), len(ids))
        return ForeignTokens(ids, mask, str(take(content, "data_id")))

    def read_sample(self, content: Content, hints: Hints) -> ForeignSample:
        """Return the sample of a file; `hints.final` is what `dataset.json` says."""
        tokens = self.read_tokens(content)
        last = take_matrix(content, "last_hidden_states", len(tokens.input_ids))
        aux = take_matrix(content, "hidden_states", len(tokens.input_ids))
        states = join(aux, last, hints)
        return ForeignSample(
            tokens.input_ids, tokens.loss_mask, states, hints.final, tokens.sample_id
        )


def pack_mask(mask: npt.NDArray[np.uint8]) -> str:
    """Write a mask (T,) as lengths of runs.

    >>> pack_mask(np.array([0, 0, 1, 1, 1, 0, 0, 1, 1, 0], np.uint8)), pack_mask(np.ones(3, np.uint8))
    ('2,3,2,2,1', '0,3')
    """
    edges = np.flatnonzero(np.diff(mask)) + 1
    runs = np.diff(np.concatenate([[0], edges, [len(mask)]])).tolist()
    return ",".join(map(str, [0, *runs] if mask[0] else runs))


def unpack_mask(packed: str, rows: int) -> npt.NDArray[np.uint8]:
    """Return the mask (rows,) that lengths of runs stand for.

    Raises
    ------
    InputError
        They are no lengths, or not of so many rows.
    """
    try:
        runs = [int(run) for run in packed.split(",")]
    except ValueError:
        raise InputError(f"'packed_loss_mask' {packed[:40]!r}: not a list of lengths") from None
    if min(runs) < 0 or sum(runs) != rows:
        raise InputError(f"'packed_loss_mask' {packed[:40]!r}: not of {rows} tokens")
    return np.repeat(np.arange(len(runs), dtype=np.uint8) % 2, runs)
