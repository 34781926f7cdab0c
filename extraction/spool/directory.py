"""The spool directory: what lies where, who may use it, and how small files are written.

::

    <spool>/
    ├── server.lock    flock held for the server's life; content: who holds it
    ├── server.json    ServerInfo, once the model is loaded
    ├── heartbeat      fixed binary record
    ├── heartbeat-<n>-<instance>   the same, of the n-th further process that computes
    ├── client.lock    flock held for the client's life; content: who holds it
    ├── client.json    ClientInfo: the only run whose requests are captured
    ├── limit          bytes that new files may take where the server is, if that is elsewhere
    ├── <rid>.part     a dump being written
    ├── <rid>.safetensors   a finished dump
    ├── <rid>.error    why there will be no dump
    └── free/<rid>     a file given back, to be reused: its pages are already faulted in
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from extraction.spool.errors import SpoolForeignError, SpoolMissingError
from extraction.spool.names import RequestId

PART = ".part"
FINISHED = ".safetensors"
ERROR = ".error"
TEMPORARY = ".tmp"

SERVER_LOCK = "server.lock"
SERVER_JSON = "server.json"
HEARTBEAT = "heartbeat"
CLIENT_LOCK = "client.lock"
CLIENT_JSON = "client.json"
LIMIT = "limit"
FREE = "free"
_OWN_NAMES = frozenset({SERVER_LOCK, SERVER_JSON, HEARTBEAT, CLIENT_LOCK, CLIENT_JSON, LIMIT, FREE})

_FURTHER_HEARTBEAT = re.compile(re.escape(HEARTBEAT) + r"-([1-9][0-9]{0,5})-([0-9a-f-]{36})")

_PRIVATE = 0o700
_SHARED = 0o2770  # setgid: what one side creates belongs to the group of both


def default_spool(port: int) -> Path:
    """Name the spool of the server at `port` of this machine, for the current user."""
    return Path("/dev/shm") / f"hsstore-{os.geteuid()}" / str(port)  # noqa: S108 - checked below


@dataclass(frozen=True, slots=True)
class SpoolDirectory:
    """A spool directory that has been checked: owner, permissions, no symbolic link."""

    path: Path
    file_mode: int
    """Permissions of new files: 0600, or 0660 in a spool shared with a group."""

    @classmethod
    def create(cls, path: Path, *, group: int | None = None) -> SpoolDirectory:
        """Create the directory (mode 0700, or 2770 for `group`), or check an existing one.

        Raises
        ------
        SpoolForeignError
            It exists with another owner, group or mode, or is not a directory.
        """
        try:
            for part in (path.parent, path, path / FREE):
                _make(part, group)
        except PermissionError as error:
            raise SpoolForeignError(f"cannot create the spool {path}: {error}") from None
        directory = cls.open(path)
        if group is not None and (directory.file_mode, path.stat().st_gid) != (0o660, group):
            raise SpoolForeignError(f"{path} exists and is not shared with group {group}")
        return directory

    @classmethod
    def open(cls, path: Path) -> SpoolDirectory:
        """Check an existing directory.

        Raises
        ------
        SpoolMissingError
            There is none.
        SpoolForeignError
            It belongs to somebody else, or others may write in it.
        """
        try:
            status, parent_mode = path.lstat(), path.parent.stat().st_mode
        except FileNotFoundError:
            raise SpoolMissingError(
                f"no spool at {path}: start the server, or name its directory: URL=SPOOL"
            ) from None
        except PermissionError as error:
            raise SpoolForeignError(f"no permission to use the spool {path}: {error}") from None
        if parent_mode & stat.S_IWOTH and not parent_mode & stat.S_ISVTX:
            raise SpoolForeignError(f"anyone could replace {path}: {path.parent} is world-writable")
        if not stat.S_ISDIR(status.st_mode):
            raise SpoolForeignError(f"{path} is not a directory: choose another --spool")
        mode = stat.S_IMODE(status.st_mode)
        shared = mode == _SHARED and _in_group(status.st_gid)
        if not shared and (status.st_uid != os.geteuid() or mode != _PRIVATE):
            raise SpoolForeignError(
                f"{path} has owner {status.st_uid}, group {status.st_gid} and mode {mode:o}: "
                "a spool must be ours alone (0700), or shared with a group of ours (2770)"
            )
        return cls(path, 0o660 if shared else 0o600)

    def part(self, rid: RequestId) -> Path:
        """Path of a dump being written."""
        return self.path / f"{rid}{PART}"

    def finished(self, rid: RequestId) -> Path:
        """Path of a finished dump."""
        return self.path / f"{rid}{FINISHED}"

    def error(self, rid: RequestId) -> Path:
        """Path of the reason why there is no dump."""
        return self.path / f"{rid}{ERROR}"

    def free(self, rid: RequestId) -> Path:
        """Path of a file that was given back."""
        return self.path / FREE / str(rid)

    def create_file(self, path: Path) -> int:
        """Open a new, empty file for reading and writing; returns its descriptor."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        os.fchmod(descriptor, self.file_mode)  # whatever the umask is
        return descriptor

    def write(self, path: Path, content: bytes) -> None:
        """Write a small file so that readers see all of it or none.

        Raises
        ------
        OSError
            The spool has no room.
        """
        temporary = path.with_name(path.name + TEMPORARY)
        with os.fdopen(self.create_file(temporary), "wb") as file:
            file.write(content)
        temporary.rename(path)

    def remove_if_empty(self) -> None:
        """Remove the directory once neither side nor any dump is in it any more."""
        try:
            if [entry.name for entry in self.path.iterdir()] == [FREE]:
                (self.path / FREE).rmdir()
                self.path.rmdir()
        except OSError:
            return  # the other side was faster, or somebody came in: theirs now


def is_own(name: str) -> bool:
    """Tell whether the protocol knows this name, requests' own files aside."""
    known = name.removesuffix(TEMPORARY) in _OWN_NAMES or writer_of(name) is not None
    return known or is_temporary_error(name)


def further_heartbeat(number: int, instance: str) -> str:
    """Name the heartbeat of a further process of a server, from 1."""
    return f"{HEARTBEAT}-{number}-{instance}"


def writer_of(name: str) -> tuple[int, str] | None:
    """Read number and instance out of a further heartbeat's name; None for other names.

    >>> writer_of("heartbeat-2-12345678-1234-1234-1234-123456789abc")
    (2, '12345678-1234-1234-1234-123456789abc')
    """
    match = _FURTHER_HEARTBEAT.fullmatch(name.removesuffix(TEMPORARY))
    return None if match is None else (int(match[1]), match[2])


def is_temporary_error(name: str) -> bool:
    """Tell whether this is an `.error` file that has not got its name yet."""
    stem = name.removesuffix(ERROR + TEMPORARY)
    return stem != name and RequestId.parse(stem) is not None


def _make(directory: Path, group: int | None) -> None:
    try:
        directory.mkdir(mode=_PRIVATE, parents=True)
    except FileExistsError:
        return
    if group is not None:
        os.chown(directory, -1, group)
    directory.chmod(_PRIVATE if group is None else _SHARED)


def _in_group(gid: int) -> bool:
    return os.geteuid() == 0 or gid == os.getegid() or gid in os.getgroups()
