"""Which mount a path lies on, from the kernel's list: nothing here touches the mount itself."""

from __future__ import annotations

import os
from dataclasses import dataclass

_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    point: str
    kind: str
    """Such as ext4, nfs4, fuse.sshfs."""
    source: str
    options: str
    """Of the mount and of the file system, joined by commas."""

    def describe(self) -> str:
        """Say point, type and source."""
        return f"{self.point} ({self.kind}, {self.source})"

    @property
    def read_only(self) -> bool:
        """Whether it is mounted so, also where only the kernel decided that after an error."""
        return "ro" in self.options.split(",")


def read_mounts(process: str = "self") -> tuple[Mount, ...]:
    """List the mounts that a process sees; the later ones hide the earlier ones.

    Raises
    ------
    OSError
        We may not look.
    """
    descriptor = os.open(f"/proc/{process}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8", errors="surrogateescape") as file:
        return tuple(_parse(line) for line in file)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """Find the mount of an absolute path, by its spelling alone.

    >>> root, data = Mount("/", "ext4", "sda", "rw"), Mount("/data", "nfs4", "box:/x", "rw")
    >>> mount_of("/data/s.zarr", (root, data)).source, mount_of("/database", (root, data)).source
    ('box:/x', 'sda')
    """
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _parse(line: str) -> Mount:
    front, _, back = line.rstrip("\n").partition(" - ")
    point, options = front.split(" ")[4:6]
    kind, source, *more = back.split(" ")
    return Mount(_plain(point), kind, _plain(source), ",".join([options, *more]))


def _plain(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text
