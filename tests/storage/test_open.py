"""Opening a store: refused with the reason, and never a write."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import zarr

from hsstore.errors import CorruptStoreError, InputError, RefusedError
from hsstore.seal import seal
from hsstore.store import Store
from hsstore.testing.stores import (
    fill_store,
    make_store,
)

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [3, 9, 40, 1, 16, 5]


def test_opening_a_missing_path_is_refused_and_creates_nothing(directory: Path) -> None:
    with pytest.raises(InputError, match="no hsstore store is there"):
        Store.open(directory / "missing" / "s.zarr")

    assert not list(directory.iterdir())


def test_opening_a_file_or_an_empty_directory_is_refused(directory: Path) -> None:
    (directory / "file").touch()
    (directory / "empty").mkdir()

    for name in ("file", "empty"):
        with pytest.raises(InputError, match="no hsstore store is there"):
            Store.open(directory / name)


def test_opening_a_foreign_zarr_group_is_refused(directory: Path) -> None:
    zarr.create_group(directory / "foreign.zarr")

    with pytest.raises(InputError, match="a Zarr group, but not an hsstore store"):
        Store.open(directory / "foreign.zarr")


def change_attributes(path: Path, **changes: Any) -> None:
    root = path / "zarr.json"
    metadata = json.loads(root.read_text())
    metadata["attributes"]["hsstore"] |= changes
    root.write_text(json.dumps(metadata))


def test_a_store_with_an_unknown_codec_is_refused_by_its_name(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    spec = store.spec.model_copy(
        update={"codec": {"name": "hsstore.next_year", "configuration": {"level": 3}}}
    )
    change_attributes(store.path, **seal(spec, store.path).model_dump(mode="json"))

    with pytest.raises(RefusedError, match=r"s\.zarr: .*'hsstore\.next_year'.*later one"):
        Store.open(store.path)


def test_opening_another_version_of_the_format_names_both(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    change_attributes(store.path, format="hsstore/2")

    with pytest.raises(InputError, match="format 'hsstore/2'; this version reads 'hsstore/1'"):
        Store.open(store.path)


def test_opening_a_store_with_a_field_it_cannot_have_is_corrupt(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    change_attributes(store.path, surprise=1)

    with pytest.raises(CorruptStoreError, match="surprise"):
        Store.open(store.path)


@pytest.mark.parametrize("change", [{"plan_hash": "0"}, {"seal": {}}, {"created_by": "me"}])
def test_opening_a_store_whose_attributes_changed_is_corrupt(
    directory: Path, change: dict[str, Any]
) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    change_attributes(store.path, **change)

    with pytest.raises(CorruptStoreError, match="attributes have changed"):
        Store.open(store.path)


def test_opening_a_store_whose_root_is_not_json_is_refused(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    (store.path / "zarr.json").write_text("{")

    with pytest.raises(CorruptStoreError, match=r"zarr\.json"):
        Store.open(store.path)


def read_everything(path: Path) -> None:
    store = Store.open(path)
    store.completion()
    for sample in range(len(store)):
        _ = store[sample]


@pytest.mark.parametrize("name", ["complete", "digest", "failed", "length", "input_ids"])
@pytest.mark.parametrize("position", [0, 0.5, 1])
def test_a_flipped_byte_in_a_small_array_is_corrupt(
    directory: Path, name: str, position: float
) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    fill_store(store)
    path = store.path / name / "c.0"
    content = bytearray(path.read_bytes())
    content[int(position * (len(content) - 1))] ^= 1
    path.write_bytes(content)

    with pytest.raises(CorruptStoreError, match=name):
        read_everything(store.path)


def test_a_missing_array_is_corrupt(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    (store.path / "length" / "zarr.json").unlink()

    with pytest.raises(CorruptStoreError, match="array length is missing"):
        _ = Store.open(store.path).length


OPEN_AND_READ = """
import sys
import hsstore

writes = []
def note_writes(event, args):
    opens = event == "open" and isinstance(args[2], int) and args[2] & 0o3
    changes = event in {"os.mkdir", "os.rename", "os.remove", "os.truncate", "os.utime"}
    if (opens or changes) and sys.argv[1] in str(args[0]):
        writes.append((event, args))

sys.addaudithook(note_writes)
store = hsstore.open(sys.argv[1])
print(sum(len(store[sample].hidden_states) for sample in range(len(store))), store.runs(), writes)
"""


def test_opening_and_reading_write_nothing(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    fill_store(store)
    before = {path: path.stat() for path in store.path.rglob("*")}

    reader = subprocess.run(
        [sys.executable, "-c", OPEN_AND_READ, str(store.path)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )

    assert reader.stdout == f"{sum(LENGTHS)} [] []\n"
    after = {path: path.stat() for path in store.path.rglob("*")}
    assert {path: status.st_mtime_ns for path, status in after.items()} == {
        path: status.st_mtime_ns for path, status in before.items()
    }
