"""What a thread waits in, by the kernel's word: a file system, a lock, or nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from extraction.diagnosis.stacks import shorten

if TYPE_CHECKING:
    from extraction.diagnosis.evidence import ThreadEvidence

BUSY_SHARE: Final = 0.02
"""Of a core: on a crowded machine a loop gets no more; a thread that waits for a lock uses none."""
_DISK_WAITS: Final = (
    "request_wait_answer",  # FUSE
    "percpu_rwsem_wait",  # a frozen file system
    "rpc_wait",
    "nfs",
    "ceph",
    "cl_",
    "ldlm",
    "io_schedule",
    "folio_wait",
    "wait_on_page",
    "jbd2",
    "xfs_",
    "ext4_",
    "__fuse",
    "fuse_",
)
"""How kernel functions begin in which a thread waits for a file system."""


def is_disk_wait(wait_channel: str | None) -> bool:
    """Tell whether a kernel function is one in which a thread waits for a file system.

    >>> is_disk_wait("request_wait_answer"), is_disk_wait("do_epoll_wait"), is_disk_wait(None)
    (True, False, False)
    """
    return (wait_channel or "").startswith(_DISK_WAITS)


def how_it_hangs(thread: ThreadEvidence | None, frames: tuple[str, ...]) -> str:
    """Tell a deadlock, an endless loop and a wait in the kernel apart."""
    place = f" in {shorten(frames)}" if frames else ""
    if thread is None:
        return f"its threads cannot be seen{place}"
    if thread.cpu_share > BUSY_SHARE or thread.state == "R":
        return f"an endless loop{place} (thread {thread.tid} computes all the time)"
    if thread.state == "D":
        return f"a wait in the kernel{place} ({thread.describe()})"
    return f"a deadlock{place} (thread {thread.tid} waits, and uses no processor)"
