"""Which rows of a forward belong to which request. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from extraction.spool import RequestId


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one request, computed in one forward."""

    rid: str
    start: int
    """Position of the first row in its sequence."""
    rows: int
    offset: int
    """First row in the forward's tensors."""
    last: bool
    """Whether it ends with the request's last row: no more will come."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows that lie together in the forward's tensors."""

    offset: int
    rows: int


def pieces_of(
    rids: Sequence[str],
    lengths: Sequence[int],
    starts: Sequence[int],
    wanted: Callable[[str], RequestId | None],
) -> list[Piece]:
    """Cut a forward into the pieces of the requests that are wanted.

    Parameters
    ----------
    rids
        Requests of the forward, in the order of their rows.
    lengths, starts
        Rows of each, and the position of the first one. Longer than `rids` where the engine padded
        its batch; rows of padding come last.
    wanted
        Reads the id of a request whose rows are of use.
    """
    pieces = []
    offset = 0
    for rid, rows, start in zip(rids, lengths, starts, strict=False):
        request = wanted(rid) if rows > 0 else None
        if request is not None:
            last = start + rows >= request.rows
            pieces.append(Piece(rid, start, rows, offset, last))
        offset += rows
    return pieces


def runs_of(pieces: Sequence[Piece]) -> list[Run]:
    """Join neighbours, so that a forward is copied in few pieces.

    >>> runs_of([Piece("a", 0, 4, 2, False), Piece("b", 7, 3, 6, False), Piece("c", 0, 1, 20, True)])
    [Run(offset=2, rows=7), Run(offset=20, rows=1)]
    """
    runs: list[Run] = []
    for piece in pieces:
        if runs and runs[-1].offset + runs[-1].rows == piece.offset:
            runs[-1] = Run(runs[-1].offset, runs[-1].rows + piece.rows)
        else:
            runs.append(Run(piece.offset, piece.rows))
    return runs
