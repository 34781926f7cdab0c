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
    device: str = ""
    """Major and minor number: the same for all mounts of one file system."""
    root: str = "/"
    """What of the file system is mounted there."""

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


def known_mounts() -> tuple[Mount, ...]:
    """List the mounts that this process sees; none where it may not look."""
    try:
        return read_mounts()
    except OSError:
        return ()


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


def locate(path: str, mounts: tuple[Mount, ...]) -> tuple[str, str]:
    """Return the file system of an absolute path without links and its place in there.

    Two paths of one place lead to the same file, also through a bind mount.

    >>> mounts = Mount("/", "ext4", "sda", "rw", "8:1"), Mount("/b", "ext4", "sda", "rw", "8:1", "/a")
    >>> locate("/b/s.zarr", mounts), locate("/a/s.zarr", mounts)
    (('8:1', '/a/s.zarr'), ('8:1', '/a/s.zarr'))
    """
    mount = mount_of(path, mounts)
    if mount is None:
        return "", path
    inside = path[len(mount.point.rstrip("/")) :]
    return mount.device, mount.root.rstrip("/") + inside


def _parse(line: str) -> Mount:
    front, _, back = line.rstrip("\n").partition(" - ")
    device, root, point, options = front.split(" ")[2:6]
    kind, source, *more = back.split(" ")
    options = ",".join([options, *more])
    return Mount(_plain(point), kind, _plain(source), options, device, _plain(root))


def _plain(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text
