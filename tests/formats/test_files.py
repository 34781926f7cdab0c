"""Files on a disk: whole or not, safe or not, and bit for bit what was written."""

from __future__ import annotations

import contextlib
import gzip
import os
import pickle
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typing_extensions import override

from hsstore.formats.files import UnreadableFileError, is_whole, read_file, write_file

if TYPE_CHECKING:
    from pathlib import Path

BITS = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
"""Every pattern that a bfloat16 has."""


def content() -> dict[str, Any]:
    return {
        "input_ids": np.arange(256),
        "states": BITS.view(ml_dtypes.bfloat16),
        "half": BITS.copy().view(np.float16),
        "full": np.arange(12, dtype=np.float32).reshape(3, 4),
    }


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", ["a.pt", "a.ckpt", "a.safetensors"])
def test_what_is_written_is_read_bit_for_bit(name: str, *, mapped: bool, tmp_path: Path) -> None:
    size = write_file(tmp_path / name, content())

    found = read_file(tmp_path / name, mapped=mapped)

    assert size == (tmp_path / name).stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == [name]
    for key, value in content().items():
        assert found[key].dtype == value.dtype
        assert found[key].tobytes() == value.tobytes()


def test_plain_values_come_along_with_tensors(tmp_path: Path) -> None:
    values = {"id": "ä", "flag": True, "metadata": {"x": [1, 2.5]}, "list": [np.ones(2)]}
    torch.save(values | {"list": [torch.ones(2)]}, tmp_path / "a.pt")

    found = read_file(tmp_path / "a.pt")

    assert found["list"][0].tolist() == [1, 1]
    assert {name: found[name] for name in ("id", "flag", "metadata")} == {
        name: values[name] for name in ("id", "flag", "metadata")
    }


def test_compressed_files_and_those_of_old_versions_are_read(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(5)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"x": torch.arange(5)}, tmp_path / "a.ckpt")
    with gzip.open(tmp_path / "a.ckpt.gz", "wb") as file:
        file.write((tmp_path / "a.ckpt").read_bytes())

    for name in ("old.pt", "a.ckpt.gz"):
        assert read_file(tmp_path / name, mapped=True)["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.ckpt.gz"])
@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.999])
def test_a_file_that_was_cut_off_is_told_from_a_whole_one(
    name: str, keep: float, tmp_path: Path
) -> None:
    path = tmp_path / name
    if name.endswith(".gz"):
        write_file(tmp_path / "a.ckpt", content())
        path.write_bytes(gzip.compress((tmp_path / "a.ckpt").read_bytes()))
    else:
        write_file(path, content())
        assert is_whole(path)

    os.truncate(path, int(keep * path.stat().st_size))

    assert not is_whole(path)
    with pytest.raises(UnreadableFileError) as found:
        read_file(path)
    assert found.value.kind == "truncated"


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_of_any_size_that_was_cut_off_is_called_so(*, mapped: bool, tmp_path: Path) -> None:
    for size in (1, 400, 1_000, 10_000):
        path = tmp_path / "a.ckpt"
        torch.save({"input_ids": torch.arange(size)}, path)
        os.truncate(path, path.stat().st_size // 2)

        with pytest.raises(UnreadableFileError) as found:
            read_file(path, mapped=mapped)
        assert found.value.kind == "truncated", size


@pytest.mark.parametrize("as_zip", [False, True])
def test_a_pickle_that_would_run_code_is_not_loaded(*, as_zip: bool, tmp_path: Path) -> None:
    bomb = Bomb(tmp_path / "ran")
    path = tmp_path / "a.pt"
    if as_zip:
        torch.save({"input_ids": torch.ones(3), "hidden_states": bomb}, path)
    else:
        path.write_bytes(pickle.dumps({"input_ids": bomb}, protocol=2))

    with pytest.raises(UnreadableFileError, match="not loaded, it might run code") as found:
        read_file(path)

    assert found.value.kind == "unsafe"
    assert not bomb.path.exists()
    with contextlib.suppress(
        RuntimeError
    ):  # a bare pickle is none of torch's, which it finds too late
        torch.load(path, weights_only=False)  # as others do
    assert bomb.path.exists()


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.pt", b"", "truncated"),
        ("a.pt", b"no pickle at all", "foreign"),
        ("a.ckpt.gz", b"no gzip", "truncated"),
        ("a.safetensors", b"", "truncated"),
        ("a.safetensors", b"no safetensors, and long enough to be one", "foreign"),
        ("a.safetensors", (2).to_bytes(8, "little") + b"[]", "foreign"),
        ("a.safetensors", (9).to_bytes(8, "little") + b'{"a": 12}', "foreign"),
    ],
)
def test_other_files_are_told_as_what_they_are(
    name: str, data: bytes, kind: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)

    assert not is_whole(tmp_path / name)
    with pytest.raises(UnreadableFileError) as found:
        read_file(tmp_path / name)
    assert found.value.kind == kind


def test_a_tensor_that_is_no_sample_and_a_type_that_numpy_has_not_are_foreign(
    tmp_path: Path,
) -> None:
    torch.save(torch.ones(3), tmp_path / "a.pt")
    save_file({"x": torch.ones(3).to(torch.float8_e4m3fn)}, tmp_path / "a.safetensors")

    for name in ("a.pt", "a.safetensors"):
        with pytest.raises(UnreadableFileError) as found:
            read_file(tmp_path / name)
        assert found.value.kind == "foreign"


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_file(tmp_path / "a.pt", {"x": np.array(["text"])})

    assert list(tmp_path.iterdir()) == []
