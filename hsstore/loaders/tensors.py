"""States of a sample as a torch tensor, decoded straight into its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hsstore.buffers import shared_pool
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.store import Store

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_BITS = {2: torch.uint16, 4: torch.uint32}


def torch_dtype(store: Store) -> torch.dtype:
    """Return the dtype of a store's states."""
    return _DTYPES[store.spec.model.dtype]


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that states in a batch are to have, if it is one that they can have.

    Raises
    ------
    InputError
    """
    if dtype not in _DTYPES.values():
        raise InputError(f"dtype is {dtype!r}; states can be torch's {', '.join(_DTYPES)}")
    return dtype


def bits_of(states: torch.Tensor) -> npt.NDArray[Any]:
    """Return the raw bits of a tensor of states, in its memory."""
    bits: npt.NDArray[Any] = states.detach().view(_BITS[states.dtype.itemsize]).numpy()
    return bits


def read_states(
    store: Store,
    index: int,
    *,
    rows: slice = slice(None),
    slots: Sequence[int] | None = None,
    out: torch.Tensor | None = None,
    contiguous: bool = False,
) -> torch.Tensor:
    """Read the states of a sample, or a part of them: only the chunks in it are read.

    Parameters
    ----------
    rows : slice
        Of the sample's rows, in steps of 1.
    slots : ints, optional
        Which slots, in this order; all if it is left out.
    out : tensor (rows, slots, hidden), optional
        Of the store's dtype, on the CPU: pinned memory, part of a batch; any strides.
    contiguous : bool
        Without `out`: the slots of a row side by side. Where a chunk of the store holds one slot,
        this is a copy inside the cache for every chunk; otherwise they lie so anyway.

    Returns
    -------
    tensor (rows, slots, hidden)
        `out`, if it was given. Otherwise its memory is used again for other samples when nothing
        refers to it; where a chunk of the store holds one slot, `tensor[:, k]` is contiguous.

    Raises
    ------
    IndexError
    NotExtractedError
        The sample is pending, or it failed.
    CorruptStoreError
        Its payload does not pass the crc.
    ValueError
        `out` has another shape or dtype.
    """
    dtype = torch_dtype(store)
    if out is None and contiguous:
        memory = shared_pool.empty(_shape(store, index, rows, slots), store.bits)
        out = torch.from_numpy(memory).view(dtype)
    if out is None:
        bits = store.states(index, rows=rows, slots=slots).view(store.bits)
        return torch.from_numpy(bits).view(dtype)
    if out.dtype != dtype:
        raise ValueError(f"out is {out.dtype}; the store has {dtype}")
    store.states(index, rows=rows, slots=slots, out=bits_of(out))
    return out


def _shape(
    store: Store, index: int, rows: slice, slots: Sequence[int] | None
) -> tuple[int, int, int]:
    geometry = store.spec.geometry
    tokens = store.index.length[range(len(store))[index]]
    count = len(range(int(tokens))[rows])
    return (count, geometry.slots if slots is None else len(slots), geometry.hidden)
