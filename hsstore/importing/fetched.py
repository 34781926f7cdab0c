"""Files under a URL, as files: brought into a stage one by one, and kept there up to a size."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING

from hsstore.files import output_errors

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.location import RemotePath

PIECE_BYTES = 16 << 20
KEPT_BYTES = 4 << 30
"""Each file is read twice, first its tokens, then its states: where all fit, they come once."""


class FetchedFiles:
    """The files that were asked for last. For one thread.

    Parameters
    ----------
    stage : Path
        An empty directory.
    kept_bytes : int
        What they may have together; the newest one is kept whatever it has.
    """

    def __init__(self, root: RemotePath, stage: Path, kept_bytes: int = KEPT_BYTES) -> None:
        self._root, self._stage, self._most_bytes = root, stage, kept_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._paths: dict[str, Path] = {}
        self._numbers = count()

    def path(self, name: str) -> Path:
        """Return a file of the stage with the bytes of an object; it is there until others need the room.

        What has mapped it may go on reading after that.

        Raises
        ------
        OSError
            There is no such object any more, or it was replaced while it was read.
        OutputError
            The stage has no room.
        UnreachableError, InputError
        """
        if name not in self._paths:
            self._fetch(name)
        self._sizes.move_to_end(name)
        return self._paths[name]

    def _fetch(self, name: str) -> None:
        path = self._stage / f"{next(self._numbers)}-{_last(name)}"
        try:
            size = _bring(self._root / name, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._paths[name], self._sizes[name] = path, size
        while len(self._sizes) > 1 and sum(self._sizes.values()) > self._most_bytes:
            old, _ = self._sizes.popitem(last=False)
            self._paths.pop(old).unlink()


def _bring(source: RemotePath, path: Path) -> int:
    """Write an object into a new file, piece by piece; return its size in bytes."""
    answer = source.get(0, PIECE_BYTES)
    size, version, done = answer.size_bytes, answer.version, 0
    while True:
        with output_errors(path), path.open("ab") as file:
            file.write(answer.data)
        done += len(answer.data)
        if done >= size:
            return size
        answer = source.get(done, done + PIECE_BYTES, version)


def _last(name: str) -> str:
    return name.rpartition("/")[2]
