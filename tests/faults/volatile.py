"""A file system that loses, at a power cut, whatever was not fsynced: contents, and names too.

What is durable is kept apart from what is seen. A file's content becomes durable with its fsync; a
name, a rename or a removal with the fsync of its directory. A snapshot of what is durable now is
what a machine would find after a cut now: the strictest file system that POSIX allows.

With ``cuts`` in the control directory (a folder, then numbers, one a line): after so many changes
a snapshot is left in ``<folder>/<number>``.
"""

from __future__ import annotations

import inspect
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from tests.faults.faulty_fuse import CHANGES, PassThrough

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Volatile(PassThrough):
    """The pass-through file system, and what of it is durable."""

    def __init__(self, backing: Path, control: Path) -> None:
        self._guard = threading.RLock()
        self._contents: dict[int, bytes] = {}
        """Durable content by inode."""
        self._names: dict[int, dict[str, tuple[int, bool]]] = {os.stat(backing).st_ino: {}}
        """Durable names by the directory's inode: inode, and whether it is a directory."""
        self._changes = 0
        self._keep: list[int] = []
        """Descriptors that keep inode numbers from being used again."""
        super().__init__(backing, control)

    @override
    def _or_wrong(self, op: str, method: Callable[..., Any]) -> Callable[..., Any]:
        checked = super()._or_wrong(op, method)
        if op not in CHANGES:
            return checked

        def counted(*args: Any) -> Any:
            with self._guard:
                result = checked(*args)
                self._changes += 1
                self._cut()
                return result

        counted.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        return counted

    @override
    def create(self, path: str, mode: int, fi: Any = None) -> int:
        descriptor = super().create(path, mode, fi)
        self._keep.append(os.dup(descriptor))
        return descriptor

    @override
    def mkdir(self, path: str, mode: int) -> int:
        super().mkdir(path, mode)
        self._keep.append(os.open(self._full(path), os.O_RDONLY))
        return 0

    @override
    def fsync(self, path: str, datasync: int, fh: int) -> int:
        with open(f"/proc/self/fd/{fh}", "rb") as file:
            self._contents[os.fstat(fh).st_ino] = file.read()
        return 0

    @override
    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        directory = self._full(path)
        with os.scandir(directory) as entries:
            names = {one.name: (one.inode(), one.is_dir()) for one in entries}
        self._names[os.stat(directory).st_ino] = names
        return 0

    def _cut(self) -> None:
        folder, *numbers = self._text("cuts").split() or [""]
        if folder and str(self._changes) in numbers:
            self._write(Path(folder) / str(self._changes), os.stat(self._root).st_ino)

    def _write(self, target: Path, directory: int) -> None:
        target.mkdir(parents=True)
        for name, (inode, is_directory) in self._names.get(directory, {}).items():
            if is_directory:
                self._write(target / name, inode)
            else:
                (target / name).write_bytes(self._contents.get(inode, b""))
