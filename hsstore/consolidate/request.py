"""What was asked for: the part of a command that decides what the destination will hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import xxhash

from hsstore.codec import CodecName
from hsstore.errors import InputError, RefusedError
from hsstore.spec import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hsstore.location import Location

Order = Literal["dataset", "length", "shuffle"]
"""`dataset`: as in the sources, samples of the same dataset by their place in it; `length`: ascending;
`shuffle`: by a hash of seed and id, so that any machine and version gives the same order."""
OnConflict = Literal["refuse", "first"]
"""What becomes of samples that share an id and differ: nothing is done, or the first source's is taken."""
Linking = Literal["auto", "reflink", "never"]
"""How unchanged shards are taken over: reflink, else hard link; reflink only; neither."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which samples are wanted; None means all."""

    splits: frozenset[str] | None = None
    ids: frozenset[bytes] | None = None

    @classmethod
    def of(cls, splits: Iterable[str], id_files: Iterable[Location]) -> Self:
        """Collect what the command line says: splits that are wanted, and files with an id a line.

        Raises
        ------
        InputError
            A file cannot be read, or names nothing.
        UnreachableError
            An object store does not answer.
        """
        names, files = frozenset(splits), list(id_files)
        ids = frozenset[bytes]().union(*(_read_ids(path) for path in files)) if files else None
        return cls(names or None, ids)


def _read_ids(path: Location) -> frozenset[bytes]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    ids = frozenset(line for line in lines if line)
    if not ids:
        raise InputError(f"{path}: holds no sample id; one a line is expected")
    return ids


class Request(Record):
    """A command, as the destination records it: it can only be continued by the same one."""

    sources: tuple[str, ...]
    """UUIDs of the stores, in order."""
    order: Order = "dataset"
    seed: int = 0
    splits: tuple[str, ...] | None = None
    ids: str | None = None
    """XXH3-128 over the wanted ids, sorted."""
    on_conflict: OnConflict = "refuse"
    codec: CodecName | None = None
    """None: as the first source's. So are the sizes."""
    chunk_rows: int | None = None
    shard_rows: int | None = None
    span_samples: int | None = None

    def refuse_other(self, recorded: Request) -> None:
        """Refuse to go on with a destination that another command has begun.

        Raises
        ------
        RefusedError
        """
        mine, theirs = self.model_dump(mode="json"), recorded.model_dump(mode="json")
        for name, value in mine.items():
            if theirs[name] != value:
                raise RefusedError(
                    f"the destination was made by another command: {name} was {theirs[name]!r} and is "
                    f"{value!r} now; give the same options, or another destination"
                )


def hash_ids(ids: frozenset[bytes] | None) -> str | None:
    """Return what a request records of a list of ids."""
    return None if ids is None else xxhash.xxh3_128_hexdigest(b"\n".join(sorted(ids)))
