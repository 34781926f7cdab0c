"""Memory for the tensors of a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from hsstore.buffers import shared_pool

_BITS: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor that the training process can be given without a copy.

    In a worker process of a `DataLoader` it lies in shared memory; elsewhere its memory is used again
    for other batches when nothing refers to it.
    """
    if get_worker_info() is not None:
        nbytes = math.prod(shape) * dtype.itemsize
        # As torch's own collation does.
        storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]  # noqa: SLF001
        return torch.empty(0, dtype=dtype).set_(storage).view(shape)
    return torch.from_numpy(shared_pool.empty(shape, _BITS[dtype.itemsize])).view(dtype)
