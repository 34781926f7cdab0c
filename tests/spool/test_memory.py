"""What a spool may still take, from every limit that there may be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from extraction.spool.memory import RESERVE_BYTES, headroom_bytes

MIB = 1 << 20
STAT = "cache 1\ninactive_file 100\ntotal_inactive_file 300\n"


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """Build a /proc and a /sys/fs/cgroup of a machine with 64 GiB, half of it available."""
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroup.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n")
    (proc / "self/cgroup").write_text("")
    return proc, cgroup


def _write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)


def test_the_tightest_cgroup_on_the_way_to_the_root_decides(machine: tuple[Path, Path]) -> None:
    proc, cgroup = machine
    (proc / "self/cgroup").write_text("0::/outer/inner\n")
    _write(cgroup / "outer", memory__max=f"{160 * MIB}", memory__current="1000", memory__stat=STAT)
    _write(cgroup / "outer/inner", memory__max="max", memory__current="0", memory__stat=STAT)

    headroom = headroom_bytes(Path("/dev/shm"), proc=proc, cgroup=cgroup)

    assert headroom == 160 * MIB - 1000 + 300 - 10 * MIB


def test_version_1_limits_count_too(machine: tuple[Path, Path]) -> None:
    proc, cgroup = machine
    (proc / "self/cgroup").write_text("9:name=systemd:/\n4:cpu,memory:/box\n0::/\n")
    limits = {"memory__limit_in_bytes": f"{64 * MIB}", "memory__usage_in_bytes": f"{60 * MIB}"}
    _write(cgroup / "memory/box", **limits, memory__stat=STAT)

    assert headroom_bytes(Path("/dev/shm"), proc=proc, cgroup=cgroup) == 300


def test_a_container_whose_own_cgroup_is_mounted_as_the_root(machine: tuple[Path, Path]) -> None:
    proc, cgroup = machine
    (proc / "self/cgroup").write_text("0::/docker/1234\n")
    _write(cgroup, memory__max=f"{32 * MIB}", memory__current=f"{40 * MIB}", memory__stat=STAT)

    assert headroom_bytes(Path("/dev/shm"), proc=proc, cgroup=cgroup) == 0


def test_a_machine_without_cgroups_is_bounded_by_what_is_available(
    machine: tuple[Path, Path],
) -> None:
    proc, cgroup = machine
    (proc / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: 102400 kB\n")

    headroom = headroom_bytes(Path("/dev/shm"), proc=proc, cgroup=cgroup)

    assert headroom == 100 * MIB - RESERVE_BYTES


def test_a_small_file_system_is_used_up_to_a_sixteenth(small_tmpfs: Path) -> None:
    assert headroom_bytes(small_tmpfs) == 4 * MIB - MIB // 4


def test_a_real_memory_limit_is_seen() -> None:
    group = Path("/sys/fs/cgroup/memory/hsstore-test-headroom")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no memory cgroup of version 1 that we may use")
    code = """
import os, sys, pathlib
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from extraction.spool import headroom_bytes
print(headroom_bytes(pathlib.Path("/dev/shm")))
"""
    try:
        (group / "memory.limit_in_bytes").write_text(str(256 * MIB))
        command = [sys.executable, "-c", code, str(group)]
        seen = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    finally:
        group.rmdir()

    assert 128 * MIB < seen <= 240 * MIB
