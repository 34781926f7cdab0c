"""Run commands as another user, in a container of its own, or with little memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.extraction.processes import Ended, wait_until
from tests.sglang.serving import PYTHON, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.sglang.serving import SglangServer

CGROUPS = Path("/sys/fs/cgroup/memory")

_AS_USER = """
set -e
for closed in $1; do
    behind=$(mktemp -d)
    mount --bind "$closed" "$behind"
    mount -t tmpfs -o mode=0755 tmpfs "$closed"
    for entry in "$behind"/* "$behind"/.[!.]*; do
        [ -e "$entry" ] || continue
        name="$closed/${entry##*/}"
        if [ -d "$entry" ]; then mkdir "$name"; else touch "$name"; fi
        mount --bind "$entry" "$name"
    done
    umount "$behind"
    rmdir "$behind"
done
shift
exec setpriv --reuid "$1" --regid "$1" --groups "$1,$2" -- "${@:3}"
"""
"""$1: directories that others may not enter. In a mount namespace of its own they are made so, or the
other user could not even run this Python."""


def need_root() -> None:
    """Skip where users and namespaces cannot be changed."""
    if os.geteuid():
        pytest.skip("needs root")


def as_user(uid: int, group: int) -> list[str]:
    """Return what runs a command as a user without any privilege, who is also in `group`."""
    unshare = ["unshare", "--mount", "bash", "-c", _AS_USER, "bash"]
    return [*unshare, " ".join(_closed_to_others()), str(uid), str(group)]


def _closed_to_others() -> list[str]:
    """Directories on the way to our interpreters that only root may enter, outermost first."""
    wanted = [Path(sys.executable), Path(sys.executable).resolve(), PYTHON.resolve(), ROOT]
    parents = {parent for path in wanted for parent in path.parents}
    return [str(path) for path in sorted(parents) if not path.stat().st_mode & 0o001]


IN_A_CONTAINER = (
    "unshare",
    *("--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"),
)
"""What runs a command with process ids of its own; network and /dev/shm are shared, as in a pod."""


@contextmanager
def directory_of(uid: int) -> Iterator[Path]:
    """Make a directory of a user that all may enter; those of pytest are private to its user."""
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as name:
        path = Path(name)
        path.chmod(0o755)
        os.chown(path, uid, uid)
        try:
            yield path
        finally:
            shutil.rmtree(f"/dev/shm/hsstore-{uid}", ignore_errors=True)  # status pages


def extract_behind(
    prefix: Sequence[str],
    server: SglangServer,
    store: Path,
    *arguments: str | Path,
    key: str | None = None,
) -> Ended:
    """Run `hsstore extract` behind a command that changes what it may do."""
    command = [*prefix, sys.executable, "-m", "hsstore", "extract", str(store)]
    where = ["--server", server.url, "--spool", str(server.spool)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HOME": str(store.parent)}
    environment |= {"HSSTORE_API_KEY": key} if key is not None else {}
    began = time.monotonic()
    result = subprocess.run(
        [*command, *where, *map(str, arguments)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=store.parent,
        timeout=250,
    )
    return Ended(result.returncode, result.stdout, time.monotonic() - began)


@contextmanager
def memory_cgroup() -> Iterator[Path]:
    """Make a memory cgroup (version 1); `inside` runs a command in it."""
    if not (CGROUPS / "memory.limit_in_bytes").exists():
        pytest.skip("needs memory cgroups, version 1")
    path = CGROUPS / f"hsstore-test-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    try:
        yield path
    finally:
        wait_until(lambda: not (path / "cgroup.procs").read_text())
        path.rmdir()


def inside(cgroup: Path) -> list[str]:
    """Return what runs a command in a cgroup."""
    return ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh"]
