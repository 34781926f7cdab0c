"""Which samples and which slots of a store are read."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import InputError
from hsstore.spans import read_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.store import Store

    Bools = npt.NDArray[np.bool_]


def aux_slots(store: Store, layers: Sequence[int] | None) -> list[int]:
    """Return the slots of some captured layers; of all, if none are named.

    Raises
    ------
    InputError
        The store has no final state, or not all of these layers.
    """
    model = store.spec.model
    if model.final == "none" or not model.layers:
        raise InputError(f"{store.location}: EAGLE-3 needs captured layers and the final state")
    if layers is None:
        return list(range(len(model.layers)))
    if missing := [layer for layer in layers if layer not in model.layers]:
        raise InputError(
            f"{store.location}: layers {missing} are not in the store; it has {list(model.layers)}"
        )
    if not layers:
        raise InputError("layers is empty: name at least one, or leave it out")
    return [model.layers.index(layer) for layer in layers]


def completeness(store: Store) -> tuple[Bools, Bools]:
    """Return which samples are complete, and which failed, fresh; both of shape (n,)."""
    span_samples = store.spec.layout.span_samples
    complete, failed = (
        read_spans(store.location, name, len(store), span_samples, slice(None))
        for name in ("complete", "failed")
    )
    return complete, failed != 0


def encode_samples(chosen: Bools) -> str:
    """Write a choice of samples as a short text."""
    return base64.b64encode(zlib.compress(np.packbits(chosen).tobytes())).decode()


def decode_samples(text: str, count: int) -> Bools:
    """Read what `encode_samples` wrote of so many samples."""
    packed = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return np.unpackbits(packed, count=count).astype(np.bool_)
