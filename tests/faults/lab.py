"""The fault lab: file systems that freeze, hang, fail, fill up and lose power, and are cleaned up.

Everything is a context manager that undoes itself in every exit path: a frozen mount that is left
behind blocks the machine. It needs root; where something cannot be made, `LabError` says why.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB: Final = 1 << 20
KEPT_SECONDS: Final = 3.0
"""How long `--other-host` of `faulty_fuse` keeps names and attributes."""
_ROOT: Final = Path(__file__).resolve().parents[2]
_MOUNT_SECONDS: Final = 20.0


class LabError(Exception):
    """A fault cannot be produced here: no root, no loop devices, no FUSE."""


@contextmanager
def room(prefix: str = "hsstore-lab-") -> Iterator[Path]:
    """Give a directory in shared memory for images, mount points and logs."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir="/dev/shm") as path:
        yield Path(path)


@contextmanager
def ext4(
    directory: Path, size_bytes: int = 64 * MIB, *, inodes: int | None = None
) -> Iterator[Path]:
    """Mount a fresh ext4 image of its own; it is thawed and unmounted in the end.

    Parameters
    ----------
    inodes
        How many files it can hold; None: as many as mkfs thinks.
    """
    image, mount = directory / "image", directory / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    options = ["-N", str(inodes)] if inodes else []
    _run("mkfs.ext4", "-q", "-F", *options, image)
    _run("mount", "-o", "loop", image, mount)
    with _guarded(mount):
        try:
            yield mount
        finally:
            thaw(mount)
            unmount(mount)


@contextmanager
def frozen(mount: Path) -> Iterator[None]:
    """Freeze a file system: whoever writes waits in state D; looking still works."""
    freeze(mount)
    try:
        yield
    finally:
        thaw(mount)


def freeze(mount: Path) -> None:
    """Freeze; `ext4` thaws in the end, whatever happens."""
    _run("fsfreeze", "-f", mount)


def thaw(mount: Path) -> None:
    """Thaw, if it is frozen."""
    subprocess.run(["fsfreeze", "-u", mount], check=False, capture_output=True)


@contextmanager
def read_only(mount: Path) -> Iterator[None]:
    """Remount a whole file system read-only, as the kernel does after an error."""
    _remount(mount, "ro")
    try:
        yield
    finally:
        _remount(mount, "rw")


def use_up_bytes(mount: Path, leave_bytes: int = 0) -> Path:
    """Fill a file system; removing the file that is returned gives the room back."""
    filler = mount / "somebody else's"
    status = os.statvfs(mount)
    with filler.open("wb") as file:
        with suppress(OSError):  # the last bytes are in pieces too small for one extent
            free = status.f_bfree * status.f_frsize - leave_bytes
            os.posix_fallocate(file.fileno(), 0, max(1, free - MIB))
        if not leave_bytes:
            with suppress(OSError):
                file.seek(0, os.SEEK_END)
                while True:
                    os.write(file.fileno(), bytes(4096))
    return filler


def use_up_inodes(mount: Path) -> Path:
    """Create empty files until there are no inodes; they lie in the directory that is returned."""
    crowd = mount / "crowd"
    crowd.mkdir()
    with suppress(OSError):
        for number in range(1 << 20):
            (crowd / str(number)).touch()
    return crowd


class Fuse:
    """A pass-through file system whose operations hang or fail on demand.

    Attributes
    ----------
    mount : Path
    backing : Path
        The directory behind it.
    """

    def __init__(self, mount: Path, backing: Path, control: Path) -> None:
        self.mount, self.backing, self._control = mount, backing, control

    @contextmanager
    def set(self, what: str, text: str = "") -> Iterator[None]:
        """Have a fault for a while: see `faulty_fuse`."""
        self.begin(what, text)
        try:
            yield
        finally:
            self.end(what)

    def begin(self, what: str, text: str = "") -> None:
        """Begin a fault; the mount ends it in the end."""
        part = self._control / f".{what}"
        part.write_text(text)
        part.rename(self._control / what)

    def end(self, what: str) -> None:
        """End a fault."""
        (self._control / what).unlink(missing_ok=True)


@contextmanager
def fuse(directory: Path, *arguments: str) -> Iterator[Fuse]:
    """Mount a pass-through file system of `faulty_fuse`."""
    mount, backing, control = (directory / name for name in ("fuse", "backing", "control"))
    for path in (mount, backing, control):
        path.mkdir(exist_ok=True)
    with (directory / "fuse.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.faulty_fuse", backing, mount, control, *arguments],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        with _guarded(mount):
            _wait_for_mount(mount, server, directory / "fuse.log")
            yield Fuse(mount, backing, control)
    finally:
        for fault in control.iterdir():
            fault.unlink(missing_ok=True)
        unmount(mount)
        server.kill()  # answers whoever still waits with an error
        server.wait()


@contextmanager
def _guarded(mount: Path) -> Iterator[None]:
    """Have a mount undone also when this process is killed: a helper waits for its end."""
    undo = 'read -r _; fsfreeze -u "$1"; umount -l "$1"'
    guard = subprocess.Popen(
        ["sh", "-c", undo, "hsstore-guard", mount],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with guard:
        try:
            yield
        finally:
            guard.kill()


def unmount(mount: Path) -> None:
    """Unmount; lazily when somebody still has a file open."""
    for options in ([], ["-l"]):
        for _ in range(1 if options else 10):
            if not subprocess.run(
                ["umount", *options, mount], check=False, capture_output=True
            ).returncode:
                return
            time.sleep(0.1)


def _wait_for_mount(mount: Path, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _MOUNT_SECONDS
    while f" {mount} " not in Path("/proc/self/mountinfo").read_text():
        if server.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"no FUSE here: {log.read_text()[-1000:]}")
        time.sleep(0.02)


def _remount(mount: Path, mode: str) -> None:
    # A file that is open for writing makes it busy; the emergency remount does not ask.
    for _ in range(100):
        if not subprocess.run(
            ["mount", "-o", f"remount,{mode}", mount], check=False, capture_output=True
        ).returncode:
            return
        time.sleep(0.05)
    raise LabError(f"{mount} cannot be remounted {mode}")


def _run(*command: str | Path) -> None:
    try:
        result = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise LabError(str(error)) from None
    if result.returncode:
        raise LabError(f"{' '.join(map(str, command))}: {result.stderr.strip()}")
