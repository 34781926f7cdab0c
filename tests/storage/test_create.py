"""Creating a store: whole or not at all, one of several, never over another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hsstore.errors import RefusedError
from hsstore.store import Store
from hsstore.testing.invariants import (
    complete_samples,
)
from hsstore.testing.stores import (
    SMALL_LAYOUT,
    commit_block,
    fill_store,
    make_model,
    make_store,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.create import LayoutOptions

LENGTHS = [3, 9, 40, 1, 16, 5]


CREATE_IN_TEN_PROCESSES = """
import os, sys
from pathlib import Path
from hsstore.testing.stores import make_store

any(os.fork() == 0 for _ in range(9))  # ends early in a child
uuid = make_store(Path(sys.argv[1]), [3, 9, 40]).spec.store
os.write(1, f"{uuid}\\n".encode())  # one write, so that lines stay whole
"""


def test_ten_processes_that_create_at_once_end_with_one_store(directory: Path) -> None:
    path = directory / "s.zarr"

    creators = subprocess.run(
        [sys.executable, "-c", CREATE_IN_TEN_PROCESSES, str(path)],
        check=True,
        stdout=subprocess.PIPE,  # ends when the last of them has ended
        text=True,
    )

    assert creators.stdout.splitlines() == [Store.open(path).spec.store] * 10
    assert [path.name for path in directory.iterdir()] == ["s.zarr"]


DIE_WHILE_BUILDING = """
import os, signal, sys
from pathlib import Path
from hsstore.testing.stores import make_store

writes = 0
def die(event, args):
    global writes
    if event == "os.rename":
        writes += 1
        if writes == int(sys.argv[2]) or str(args[1]) == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die)
make_store(Path(sys.argv[1]), [3, 9, 40])
"""


@pytest.mark.crash
@pytest.mark.parametrize("write", [1, 20, 1000])  # the last one: at the final rename
def test_a_killed_builder_leaves_nothing_under_the_final_name(directory: Path, write: int) -> None:
    path = directory / "s.zarr"

    killed = subprocess.run(
        [sys.executable, "-c", DIE_WHILE_BUILDING, str(path), str(write)], check=False
    )

    assert killed.returncode == -signal.SIGKILL
    assert not path.exists()
    assert len(make_store(path, [3, 9, 40])) == 3


def test_creating_what_exists_opens_it(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    commit_block(store, 0, [0])

    again = make_store(directory / "s.zarr", LENGTHS)

    assert again.spec == store.spec
    assert complete_samples(again) == {0}


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("layout", replace(SMALL_LAYOUT, chunk_rows=2, shard_rows=64)),
        ("codec", replace(SMALL_LAYOUT, codec="lz4")),
    ],
)
def test_creating_what_exists_with_other_sizes_is_refused(
    directory: Path, field: str, options: LayoutOptions
) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)

    with pytest.raises(RefusedError, match=f"with another {field}"):
        make_store(directory / "s.zarr", LENGTHS, options=options)

    assert Store.open(store.path).spec == store.spec


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 8),
        ("layers", (0, 4)),
        ("final", "pre-norm"),
        ("dtype", "float16"),
        ("capture_hash", "4567"),
    ],
)
def test_another_model_is_refused_by_the_field_that_differs(
    directory: Path, field: str, value: Any
) -> None:
    make_store(directory / "s.zarr", LENGTHS)
    other = make_model().model_copy(update={field: value, "capture_hash": "4567"})

    with pytest.raises(RefusedError, match=rf"another model: {field} is"):
        make_store(directory / "s.zarr", LENGTHS, model=other)


def test_another_name_of_the_same_model_is_welcome(directory: Path) -> None:
    make_store(directory / "s.zarr", LENGTHS)
    other = make_model().model_copy(update={"id": "/another/path"})

    assert len(make_store(directory / "s.zarr", LENGTHS, model=other)) == 6


def test_another_dataset_is_refused_with_both_fingerprints(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)

    with pytest.raises(RefusedError, match=f"fingerprint is {store.spec.dataset.fingerprint}"):
        make_store(directory / "s.zarr", [*LENGTHS, 1])


def test_files_honour_the_umask(directory: Path) -> None:
    old = os.umask(0o027)
    try:
        store = make_store(directory / "s.zarr", LENGTHS)
        fill_store(store)
    finally:
        os.umask(old)

    modes = {(path.is_dir(), oct(path.stat().st_mode & 0o777)) for path in store.path.rglob("*")}
    assert modes == {(True, "0o750"), (False, "0o640")}
