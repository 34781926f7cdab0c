"""What /proc says of a process: its threads' states, where they wait, and in which file.

Only files of /proc that never wait are read: not `cmdline` or `maps`, which take a lock that a
thread may hold while it hangs in a page fault. A descriptor's link is text that the kernel has at
hand, so a file system that hangs is not touched.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from extraction.diagnosis.evidence import ProcessEvidence, ThreadEvidence
from extraction.diagnosis.mounts import mount_of, read_mounts
from extraction.diagnosis.syscalls import names_descriptor, names_directory, syscall_name

if TYPE_CHECKING:
    from extraction.diagnosis.mounts import Mount

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_RUNNING: Final = ("running", "0", "")
_GONE: Final = (FileNotFoundError, ProcessLookupError)


def look_at_process(pid: int, role: str, *, sample_seconds: float = 0.0) -> ProcessEvidence:
    """Look at a process and its threads; twice, `sample_seconds` apart, to see who computes."""
    before, began = _cpu_ticks(pid), time.monotonic()
    if sample_seconds:
        time.sleep(sample_seconds)
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    except _GONE:
        return ProcessEvidence(pid, role, alive=False)
    except OSError as error:
        return ProcessEvidence(pid, role, alive=True, unreadable=_why("its threads", error))
    elapsed = max(time.monotonic() - began, 1e-3)
    mounts = _mounts(pid)
    threads = []
    for tid in tids:
        thread = _look_at_thread(pid, tid, mounts, before.get(tid), elapsed)
        if thread is not None:
            threads.append(thread)
    alive = any(thread.state not in "ZX" for thread in threads)
    return ProcessEvidence(pid, role, alive=alive, threads=tuple(threads))


def is_there(pid: int) -> bool:
    """Tell whether a process or a part of it exists, zombies left out."""
    return look_at_process(pid, "").alive


def parent_of(pid: int) -> int | None:
    """Return the parent's id; None where there is no such process."""
    try:
        return int(_stat_fields(f"/proc/{pid}/stat")[1][1])
    except OSError:
        return None


def has_open(pid: int, path: str) -> bool | None:
    """Tell whether a process has a file open; None where we may not look."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208  # short and without objects
    except _GONE:
        return False
    except OSError:
        return None
    return any(_link(f"/proc/{pid}/fd/{descriptor}") == path for descriptor in descriptors)


def _look_at_thread(
    pid: int, tid: int, mounts: tuple[Mount, ...], ticks: int | None, elapsed_seconds: float
) -> ThreadEvidence | None:
    root = f"/proc/{pid}/task/{tid}"
    try:
        name, fields = _stat_fields(f"{root}/stat")
    except _GONE:
        return None
    except OSError as error:
        return ThreadEvidence(tid, "?", "?", unreadable=_why("its state", error))
    hidden: list[str] = []
    wait_channel = _text(f"{root}/wchan", "wait channel", hidden)
    call = _text(f"{root}/syscall", "system call", hidden)
    if wait_channel in _RUNNING and fields[0] in "SD" and os.geteuid():
        hidden.append("wait channel not shown")  # the kernel's answer to those who may not look
    syscall, file = _decode(pid, call)
    mount = mount_of(file, mounts) if file and file.startswith("/") else None
    used = (_ticks(fields) - ticks) / _TICKS if ticks is not None else 0.0
    return ThreadEvidence(
        tid,
        name,
        fields[0],
        None if wait_channel in _RUNNING else wait_channel,
        syscall,
        file,
        mount.describe() if mount else None,
        used / elapsed_seconds,
        "; ".join(hidden),
    )


def _decode(pid: int, call: str) -> tuple[str | None, str | None]:
    """Name the system call of a line of /proc/PID/syscall, and its file."""
    number, *arguments = call.split(" ")
    if not number.isdigit():  # `running`, or -1: in the kernel for another reason
        return None, None
    name = syscall_name(int(number))
    if names_descriptor(name) or names_directory(name):
        descriptor = int(arguments[0], 16)
        if descriptor < 1 << 20:  # AT_FDCWD is negative
            return name, _link(f"/proc/{pid}/fd/{descriptor}")
    return name, None


def _mounts(pid: int) -> tuple[Mount, ...]:
    for process in (str(pid), "self"):
        try:
            return read_mounts(process)
        except OSError:
            continue
    return ()


def _cpu_ticks(pid: int) -> dict[int, int]:
    ticks = {}
    try:
        for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            ticks[int(name)] = _ticks(_stat_fields(f"/proc/{pid}/task/{name}/stat")[1])
    except OSError:
        return ticks
    return ticks


def _ticks(fields: list[str]) -> int:
    return int(fields[11]) + int(fields[12])  # utime, stime: fields 14 and 15 of proc(5)


def _stat_fields(path: str) -> tuple[str, list[str]]:
    """Return the name, and the fields behind it, the state first."""
    front, _, back = _read(path).rpartition(")")
    return front.partition("(")[2], back.split()


def _text(path: str, what: str, hidden: list[str]) -> str:
    try:
        return _read(path).strip()
    except _GONE:
        return ""
    except OSError as error:
        hidden.append(_why(what, error))
        return ""


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    finally:
        os.close(descriptor)


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115  # also names that are no paths: pipe:[1]
    except OSError:
        return None


def _why(what: str, error: OSError) -> str:
    return f"{what} unreadable: {error.strerror}"
