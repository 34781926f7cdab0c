"""Which bytes of a shard to read for some of its chunks: as few, contiguous reads as sensible. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.shard.index import Index


@dataclass(frozen=True, slots=True)
class Part:
    """One chunk in the bytes of a read."""

    wanted: int
    """Its position among the chunks that were asked for."""
    start: int
    """Its first byte in the read."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Read:
    """A contiguous range of a shard, and the chunks in it by offset."""

    offset: int
    nbytes: int
    parts: tuple[Part, ...]


def plan_reads(entries: Index, *, most_bytes: int, gap_bytes: int) -> list[Read]:
    """Join neighbours into reads, in the order in which they lie in the file.

    Parameters
    ----------
    entries : uint64 (n, 2)
        Offset and nbytes of the chunks that are wanted; in any order, also the same one twice.
    most_bytes : int
        A read is not made longer than this by joining; a longer chunk is a read of its own.
    gap_bytes : int
        Bytes that nobody wants, and that are read all the same where they lie between two chunks.
    """
    reads: list[Read] = []
    members: list[tuple[int, int, int]] = []
    end = 0
    for wanted, offset, nbytes in _by_offset(entries):
        new_end = max(end, offset + nbytes)
        if members and (offset > end + gap_bytes or new_end - members[0][1] > most_bytes):
            reads.append(_read(members, end))
            members, new_end = [], offset + nbytes
        members.append((wanted, offset, nbytes))
        end = new_end
    return [*reads, _read(members, end)] if members else reads


def _by_offset(entries: Index) -> Iterator[tuple[int, int, int]]:
    order = np.argsort(entries[:, 0], kind="stable").tolist()
    for wanted, (offset, nbytes) in zip(order, entries[order].tolist(), strict=True):
        yield wanted, offset, nbytes


def _read(members: list[tuple[int, int, int]], end: int) -> Read:
    first = members[0][1]
    parts = (Part(wanted, offset - first, nbytes) for wanted, offset, nbytes in members)
    return Read(first, end - first, tuple(parts))
