"""What network file systems do and local ones do not, as far as FUSE can play it."""

from __future__ import annotations

import errno
import json
import platform
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.shard import shard_path
from hsstore.shard.index import MISSING
from hsstore.store import Store
from hsstore.testing.stores import commit_block, make_store, payload
from tests.extraction.processes import SMALL_STORE, Extraction, verify
from tests.faults import lab
from tests.faults.conftest import SAMPLES
from tests.faults.fake import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LENGTHS = [3, 9, 40, 1, 16, 5]
CANNOT = "this file system cannot fsync a directory"
SYNC_FILE_RANGE = {"x86_64": 277, "aarch64": 84}
WITHOUT_THE_CALL = """
import ctypes, json, logging, os, struct, sys
from pathlib import Path
from hsstore.files import start_writing, unsupported

def instruction(code, if_equal, if_not, value):
    return struct.pack("=HBBI", code, if_equal, if_not, value)

call, number, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
rules = b"".join([
    instruction(0x20, 0, 0, 0),  # which call is it
    instruction(0x15, 0, 1, call),
    instruction(0x06, 0, 0, 0x50000 | number),  # that one: answer with an error
    instruction(0x06, 0, 0, 0x7FFF0000),
])
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("rules", ctypes.c_char_p)]
program, libc = Program(len(rules) // 8, rules), ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.byref(program)) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
logging.basicConfig(format="%(message)s", stream=sys.stdout)
with path.open("wb") as file:
    file.write(bytes(8192))
    for start in (0, 4096):
        start_writing(file.fileno(), start, 4096, path)
print(json.dumps(unsupported()))
"""
"""Calls sync_file_range where the kernel answers it with an error, as seccomp lets it."""


@contextmanager
def mounted(room: Path, *arguments: str) -> Iterator[lab.Fuse]:
    """Have a file system of a kind, or skip."""
    try:
        with lab.fuse(room, *arguments) as fuse:
            yield fuse
    except lab.LabError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("number", ["ENOTSUP", "EINVAL"])
def test_a_directory_that_cannot_be_fsynced_is_said_once_and_recorded(
    fuse: lab.Fuse, room: Path, data: Path, number: str
) -> None:
    store = fuse.mount / "s.zarr"
    with serving(room / "spool", SAMPLES) as server, fuse.set(number, "fsyncdir"):
        run = Extraction(store, server, "--data", data, *SMALL_STORE, log=room / "log")
        ended = run.wait()
        (record,) = Store.open(store).runs()

    assert ended.code == 0, ended.log
    assert ended.log.count(CANNOT) == 1
    (warning,) = record.output_warnings
    assert f"{CANNOT} (" in warning
    assert warning in ended.log
    raw = json.loads((store / "runs" / record.run / "zarr.json").read_text())
    assert raw["attributes"]["hsstore_run"]["output_warnings"] == [warning]
    verify(store, SAMPLES)


def start_writing_into(path: Path, number: int) -> subprocess.CompletedProcess[str]:
    """Let sync_file_range fail with an error number, or succeed with 0."""
    call = SYNC_FILE_RANGE.get(platform.machine())
    if call is None:
        pytest.skip(f"the number of sync_file_range is not known on {platform.machine()}")
    command = [sys.executable, "-c", WITHOUT_THE_CALL, str(call), str(number), str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOSYS])
def test_a_range_that_cannot_be_sent_to_the_disk_early_is_said_once(
    tmp_path: Path, number: int
) -> None:
    ended = start_writing_into(tmp_path / "file", number)

    assert ended.returncode == 0, ended.stderr
    said, recorded = ended.stdout.splitlines()
    assert "file: this file system cannot start writing a range" in said
    assert json.loads(recorded) == [said]


def test_a_disk_that_fails_when_a_range_is_sent_is_no_such_manner(tmp_path: Path) -> None:
    failed = start_writing_into(tmp_path / "file", errno.EIO)
    done = start_writing_into(tmp_path / "file", 0)

    assert f"[Errno {errno.EIO}] Input/output error: '{tmp_path / 'file'}'" in failed.stderr
    assert done.stdout == "[]\n", done.stderr


def test_a_reader_opens_a_shard_anew_that_another_host_has_replaced(room: Path) -> None:
    """The handle is stale, as on NFS; a second time would be an error that names the file."""
    with mounted(room, "--direct") as fuse, fuse.set("stale"):
        writer = make_store(fuse.backing / "s.zarr", LENGTHS)
        commit_block(writer, 0, [1])
        reader = Store.open(fuse.mount / "s.zarr")
        np.testing.assert_array_equal(reader.payload.read(1), payload(reader, 1))
        opened = reader.payload._shard(0)

        commit_block(writer, 0, [0], run="another")
        with pytest.raises(OSError, match=r"c\.0\.0\.0") as caught:
            opened.read(int(np.flatnonzero(opened.index[:, 0] != MISSING)[0]))

        assert caught.value.errno == errno.ESTALE
        np.testing.assert_array_equal(reader.payload.read(0), payload(reader, 0))
        with fuse.set("ESTALE", "read"), pytest.raises(OSError, match=r"s\.zarr.*/c\."):
            reader.payload.read(0)
        np.testing.assert_array_equal(reader[1].hidden_states.view(reader.bits), payload(reader, 1))


def test_a_follower_reads_right_though_names_and_attributes_are_old(room: Path) -> None:
    """The old shard seems to be there still, and it lacks what its bit promises by now."""
    with mounted(room, "--other-host") as fuse:
        writer = make_store(fuse.backing / "s.zarr", LENGTHS)
        commit_block(writer, 0, [0])
        reader = Store.open(fuse.mount / "s.zarr")
        shard, there = (shard_path(store.path, 0) for store in (reader, writer))
        np.testing.assert_array_equal(reader[0].hidden_states.view(reader.bits), payload(reader, 0))
        deadline = time.monotonic() + lab.KEPT_SECONDS

        shard.stat()
        commit_block(writer, 0, [1])
        is_old = shard.stat().st_mtime_ns != there.stat().st_mtime_ns
        states = reader[1].hidden_states.view(reader.bits)

    assert is_old or time.monotonic() > deadline  # or a busy machine has taken too long
    np.testing.assert_array_equal(states, payload(reader, 1))
