"""Compare how well a row fits its own token with how well it fits others of the same sample. Pure.

Levels vary with language and text; differences within a sample do not: a row that belongs to its
token fits it better than the neighbours', and far better than tokens that stand elsewhere.
Rows whose own token is the other one as well say nothing, and are left out. In a loop, as small models fall into, a few tokens
come again and again, and each state knows all of them: what stood there before makes nothing surer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Score = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[np.float32]]
    """Of rows (positions in the piece) with tokens (positions in the sample); larger is better."""

FAR = (-41, -23, 23, 41)
"""Where tokens stand that a row is compared with: what is near may be related to it."""
WINDOW_ROWS = 64
"""Of a piece that is looked for."""
KNOWN_SHARE = 1 / 3
"""Of the rows of a window that have to say something."""
SKIPPED_ROWS = 4
"""At the start of a sample: a model's first rows are unlike all others."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """Of each row that was looked at: own fit less that of others; NaN where there is none.

    Attributes
    ----------
    rows : int64 (n,)
        In the sample, ascending.
    own, before, after, far : float32 (n,)
        Own fit; and own fit less that of the token before, of the token after, and less the mean of
        those far away.
    repeated : bool (n,)
        Whether the own token stood beside one of its neighbours in the `WINDOW_ROWS` before, too.
    """

    rows: npt.NDArray[np.int64]
    own: npt.NDArray[np.float32]
    before: npt.NDArray[np.float32]
    after: npt.NDArray[np.float32]
    far: npt.NDArray[np.float32]
    repeated: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Fit:
    """How a whole sample fits its tokens; NaN where too few rows say anything."""

    own: float
    """Mean own fit."""
    shift: float
    """Mean over the rows of own fit less the better of both neighbours'."""
    whole: float
    """Own fit less that of far tokens: the mean of a window, and the median of all windows, since the
    beginning that all samples share fits always, and best."""
    window: float
    """The same of the worst window: its mean and the standard error of that."""
    window_own: float
    """Mean own fit there."""
    window_row: int
    """Where that begins."""


def contrast_rows(
    rows: npt.NDArray[np.int64], ids: npt.NDArray[np.int32], ahead: int, score: Score
) -> Contrast:
    """Compare rows with their own token, both its neighbours, and tokens far away.

    Parameters
    ----------
    rows : int64 (n,)
        In the sample.
    ids : int32 (T,)
        All tokens of the sample.
    ahead : int
        0 where a row's own token is the one it stands at, 1 where it is the next.
    """
    own_at = rows + ahead
    own = _score_at(score, own_at, np.ones(len(rows), np.bool_))
    before, after = (_gap(own, own_at, at, ids, score) for at in (-1, 1))
    far = np.stack([_gap(own, own_at, at, ids, score) for at in FAR])
    count = (~np.isnan(far)).sum(axis=0)
    total = np.nansum(far, axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    repeated = _is_repeated(ids)[own_at]
    return Contrast(rows, own, before, after, mean.astype(np.float32), repeated)


def _is_repeated(ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Tell which tokens stood beside one of their neighbours in the `WINDOW_ROWS` before, too.

    >>> _is_repeated(np.array([5, 1, 2, 3, 1, 2, 4, 1], np.int32)).astype(int).tolist()
    [0, 0, 0, 0, 1, 1, 0, 0]
    """
    repeated = np.zeros(len(ids), np.bool_)
    pairs = ids[:-1].astype(np.int64) << 32 | ids[1:]
    order = np.argsort(pairs, kind="stable")
    again = np.flatnonzero(pairs[order[1:]] == pairs[order[:-1]])
    here, earlier = order[again + 1], order[again]
    here = here[here - earlier <= WINDOW_ROWS]
    repeated[here] = repeated[here + 1] = True
    return repeated


def _gap(
    own: npt.NDArray[np.float32],
    own_at: npt.NDArray[np.int64],
    away: int,
    ids: npt.NDArray[np.int32],
    score: Score,
) -> npt.NDArray[np.float32]:
    at = own_at + away
    inside = (at >= 0) & (at < len(ids))
    inside[inside] = ids[at[inside]] != ids[own_at[inside]]
    if abs(away) > 1:
        _leave_out_repeats(inside, own_at, at, ids)
    return own - _score_at(score, at, inside)


def _leave_out_repeats(
    inside: npt.NDArray[np.bool_],
    own_at: npt.NDArray[np.int64],
    at: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int32],
) -> None:
    """Leave out rows within A A A, whose states are unlike others, and far tokens that stand beside.

    A state also knows its neighbours, and in A B A B all that is far is one of them.
    """
    for near in (-1, 1):
        beside = own_at + near
        there = inside & (beside >= 0) & (beside < len(ids))
        token = ids[beside[there]]
        inside[there] = (token != ids[at[there]]) & (token != ids[own_at[there]])


def _score_at(
    score: Score, at: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    scores = np.full(len(at), np.nan, np.float32)
    where = np.flatnonzero(inside)
    if len(where):
        scores[where] = score(where, at[where])
    return scores


def only(contrast: Contrast, known: npt.NDArray[np.bool_]) -> Contrast:
    """Leave out the rows, (n,), whose own token cannot be told."""
    parts = {name: getattr(contrast, name) for name in ("own", "before", "after", "far")}
    left = {name: np.where(known, part, np.float32(np.nan)) for name, part in parts.items()}
    return replace(contrast, **left)


def join(parts: Sequence[Contrast]) -> Contrast:
    """Put the pieces of one sample together."""
    names = ("rows", "own", "before", "after", "far", "repeated")
    return Contrast(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def sum_up(contrast: Contrast, stride: int) -> Fit:
    """Sum up a sample, of which every so many-th row was looked at."""
    whole, window, own, row = _windows(contrast, max(1, WINDOW_ROWS // stride))
    return Fit(
        own=_mean(contrast.own),
        shift=min(_mean(contrast.before), _mean(contrast.after)),
        whole=whole,
        window=window,
        window_own=own,
        window_row=row,
    )


def _mean(values: npt.NDArray[np.float32]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean(dtype=np.float64)) if len(known) else float("nan")


def _windows(contrast: Contrast, size: int) -> tuple[float, float, float, int]:
    """Return the median and the least mean of so many rows on end, own fit there, and where it begins.

    To each mean its standard error is added before the least is taken: the fewer rows of a window are known that do not
    repeat others, and the more they differ, the clearer they have to be.
    """
    known = ~np.isnan(contrast.far)
    size = min(size, len(known))
    if not size or not known.any():
        return np.nan, np.nan, np.nan, 0
    far = np.where(known, contrast.far, 0).astype(np.float64)
    total, square = _moving_sum(far, size), _moving_sum(np.square(far), size)
    count = _moving_sum(known.astype(np.float64), size)
    enough = np.flatnonzero(count >= size * KNOWN_SHARE)
    if not len(enough):
        return np.nan, np.nan, np.nan, 0
    mean = total[enough] / count[enough]
    new = np.maximum(_moving_sum((known & ~contrast.repeated).astype(np.float64), size)[enough], 1)
    error = np.sqrt(np.maximum(square[enough] / count[enough] - np.square(mean), 0) / new)
    worst = int((mean + error).argmin())
    first = int(enough[worst])
    own = contrast.own[first : first + size][known[first : first + size]]
    least = float(mean[worst] + error[worst])
    return float(np.median(mean)), least, float(own.mean()), int(contrast.rows[first])


def _moving_sum(values: npt.NDArray[Any], size: int) -> npt.NDArray[np.float64]:
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[size:] - total[:-size])
