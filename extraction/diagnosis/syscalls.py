"""Names of the system calls that a process may hang in, by machine."""

from __future__ import annotations

import os
from typing import Final

# From the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_X86_64: Final = (
    "0 read;1 write;2 open;3 close;4 stat;5 fstat;6 lstat;7 poll;8 lseek;9 mmap;11 munmap;16 ioctl;"
    "17 pread64;18 pwrite64;19 readv;20 writev;21 access;23 select;26 msync;34 pause;35 nanosleep;"
    "40 sendfile;42 connect;43 accept;44 sendto;45 recvfrom;46 sendmsg;47 recvmsg;60 exit;61 wait4;"
    "72 fcntl;73 flock;74 fsync;75 fdatasync;76 truncate;77 ftruncate;78 getdents;79 getcwd;"
    "80 chdir;82 rename;83 mkdir;84 rmdir;85 creat;86 link;87 unlink;88 symlink;89 readlink;"
    "90 chmod;91 fchmod;92 chown;137 statfs;138 fstatfs;162 sync;202 futex;217 getdents64;"
    "230 clock_nanosleep;231 exit_group;232 epoll_wait;247 waitid;257 openat;258 mkdirat;"
    "262 newfstatat;263 unlinkat;264 renameat;265 linkat;267 readlinkat;269 faccessat;270 pselect6;"
    "271 ppoll;277 sync_file_range;280 utimensat;281 epoll_pwait;285 fallocate;295 preadv;"
    "296 pwritev;306 syncfs;316 renameat2;326 copy_file_range;327 preadv2;328 pwritev2;332 statx;"
    "437 openat2;441 epoll_pwait2"
)
_AARCH64: Final = (
    "22 epoll_pwait;25 fcntl;29 ioctl;32 flock;34 mkdirat;35 unlinkat;36 symlinkat;37 linkat;"
    "38 renameat;43 statfs;44 fstatfs;45 truncate;46 ftruncate;47 fallocate;48 faccessat;49 chdir;"
    "52 fchmod;56 openat;57 close;61 getdents64;62 lseek;63 read;64 write;65 readv;66 writev;"
    "67 pread64;68 pwrite64;69 preadv;70 pwritev;71 sendfile;72 pselect6;73 ppoll;78 readlinkat;"
    "79 newfstatat;80 fstat;81 sync;82 fsync;83 fdatasync;84 sync_file_range;88 utimensat;93 exit;"
    "94 exit_group;95 waitid;98 futex;101 nanosleep;115 clock_nanosleep;203 connect;206 sendto;"
    "207 recvfrom;211 sendmsg;212 recvmsg;215 munmap;222 mmap;227 msync;260 wait4;267 syncfs;"
    "276 renameat2;285 copy_file_range;286 preadv2;287 pwritev2;291 statx;437 openat2;"
    "441 epoll_pwait2"
)
_BY_DESCRIPTOR: Final = (
    "read write fstat lseek ioctl pread64 pwrite64 readv writev sendfile fcntl flock fsync "
    "fdatasync ftruncate getdents getdents64 fchmod fstatfs sync_file_range fallocate preadv "
    "pwritev syncfs copy_file_range preadv2 pwritev2 close"
)
_FIRST_IS_DIRECTORY: Final = (
    "openat mkdirat newfstatat unlinkat renameat linkat readlinkat faccessat utimensat renameat2 "
    "statx openat2 symlinkat"
)


def _table(text: str) -> dict[int, str]:
    pairs = (entry.split() for entry in text.split(";"))
    return {int(number): name for number, name in pairs}


_BY_DESCRIPTOR_NAMES: Final = frozenset(_BY_DESCRIPTOR.split())
_DIRECTORY_NAMES: Final = frozenset(_FIRST_IS_DIRECTORY.split())
_TABLES: Final = {"x86_64": _table(_X86_64), "aarch64": _table(_AARCH64)}
_HERE: Final = _TABLES.get(os.uname().machine, {})


def syscall_name(number: int, machine: str | None = None) -> str:
    """Name a system call of this machine, or of another one.

    >>> syscall_name(74, "x86_64"), syscall_name(82, "aarch64"), syscall_name(9999, "x86_64")
    ('fsync', 'fsync', 'number 9999')
    """
    table = _HERE if machine is None else _TABLES.get(machine, {})
    return table.get(number, f"number {number}")


def names_descriptor(syscall: str) -> bool:
    """Tell whether the first argument is the descriptor of the file that is worked on."""
    return syscall in _BY_DESCRIPTOR_NAMES


def names_directory(syscall: str) -> bool:
    """Tell whether the first argument may be the descriptor of a directory."""
    return syscall in _DIRECTORY_NAMES
