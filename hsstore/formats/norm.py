"""The final state before and after the final norm: what one project stores and the next one wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.spec import Norm

SMALLEST_WEIGHT = 2.0**-10
"""Of the median weight: a channel that the norm all but removes cannot be had back from what it gives."""
ROWS_AT_ONCE = 1024


def apply_norm(
    states: npt.NDArray[Any], norm: Norm, weight: npt.NDArray[np.float32]
) -> npt.NDArray[Any]:
    """Normalise states as the model does: RMSNorm in float32, rounded before the weight and after it.

    Other implementations round once only: they may differ in the last bit.

    Parameters
    ----------
    states : (T, hidden)
        Before the norm.
    weight : float32 (hidden,)

    Returns
    -------
    (T, hidden)
        Of the same dtype.

    Raises
    ------
    InputError
        It is another kind of norm.
    """
    _require_rmsnorm(norm)
    out = np.empty_like(states)
    for start in range(0, len(states), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        x = states[part].astype(np.float32)
        x /= np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(norm.epsilon))
        out[part] = x.astype(states.dtype).astype(np.float32) * weight
    return out


def stand_in_for_pre_norm(
    states: npt.NDArray[Any], norm: Norm, weight: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[Any], float]:
    """Divide states by the norm's weight: whoever normalises the result gets them back, nearly.

    The size of each row is lost for good, and RMSNorm does not ask for it.

    Parameters
    ----------
    states : (T, hidden)
        After the norm.
    weight : float32 (hidden,)

    Returns
    -------
    states : (T, hidden)
        Of the same dtype.
    error : float
        Largest relative difference, in the 2-norm of a row, between these states normalised again and
        what was given.

    Raises
    ------
    InputError
        It is another kind of norm, or a weight is too small to divide by.
    """
    _require_rmsnorm(norm)
    least = SMALLEST_WEIGHT * float(np.median(np.abs(weight)))
    if (small := np.flatnonzero(np.abs(weight) <= least)).size:
        raise InputError(
            f"the final norm's weight is {weight[small[0]]:.3g} in channel {small[0]} ({small.size} such "
            "channels): states before the norm cannot be made from those after it"
        )
    out = np.empty_like(states)
    error = 0.0
    for start in range(0, len(states), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        given = states[part].astype(np.float32)
        out[part] = given / weight
        again = apply_norm(out[part], norm, weight).astype(np.float32)
        size = np.maximum(np.linalg.norm(given, axis=1), np.finfo(np.float32).tiny)
        error = max(error, float((np.linalg.norm(again - given, axis=1) / size).max()))
    return out, error


def _require_rmsnorm(norm: Norm) -> None:
    if norm.kind != "rmsnorm":
        raise InputError(f"the model's final norm is {norm.kind!r}; only rmsnorm can be converted")
