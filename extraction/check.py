"""Is a dump what was asked for? Every dump passes here before it may be committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hsstore.dtype import bits_dtype
from hsstore.plausible import Fault, find_state_fault
from hsstore.spec import FailureReason

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from extraction.spool import Dump
    from hsstore.digest import PayloadHasher
    from hsstore.spec import Model


def find_fault(
    dump: Dump,
    tokens: npt.NDArray[np.int32],
    store: str,
    model: Model,
    knows: Callable[[str], bool] | None = None,
    hasher: PayloadHasher | None = None,
) -> Fault | None:
    """Say what in a dump is not what was asked for: its origin, its tokens, its states.

    That rid and length are the file name's was checked when it was opened.

    Parameters
    ----------
    tokens : int32 (T,)
        What was sent.
    store : str
        UUID of the store that it must be made for.
    knows : callable, optional
        Tells whether a start of the server may have made it; None where that is long past, as for
        dumps that a dead run left.
    hasher : PayloadHasher, optional
        Is given the states as they are checked; where there is no fault, all of them.
    """
    if knows is not None and not knows(dump.metadata.instance):
        message = f"made by server instance {dump.metadata.instance!r}, which serves no spool here"
        return Fault(FailureReason.BAD_DATA, message)
    for field, found, expected in (
        ("store", dump.metadata.store, store),
        ("capture hash", dump.metadata.capture_hash, model.capture_hash),
        ("dtype", dump.layout.dtype, model.dtype),
    ):
        if found != expected:
            return Fault(FailureReason.BAD_DATA, f"{field} is {found!r}, expected {expected!r}")
    bits = dump.hidden.view(bits_dtype(model.dtype))
    return find_token_fault(dump.input_ids, tokens) or find_state_fault(
        bits, len(tokens), model, hasher
    )


def find_token_fault(found: npt.NDArray[np.int32], expected: npt.NDArray[np.int32]) -> Fault | None:
    """Compare the tokens that the server saw with the plan's, both of shape (T,)."""
    if found.shape != expected.shape:
        return Fault(FailureReason.BAD_DATA, f"{found.size} tokens, the plan has {expected.size}")
    wrong = np.flatnonzero(found != expected)
    if not wrong.size:
        return None
    at = int(wrong[0])
    message = f"token {at} is {found[at]}, the plan has {expected[at]} ({wrong.size} differ)"
    return Fault(FailureReason.BAD_DATA, message)
