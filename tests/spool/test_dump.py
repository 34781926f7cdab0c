"""Dumps as files: safetensors, exact size, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from extraction.spool import (
    BadHeaderError,
    DumpError,
    DumpInUseError,
    DumpLayout,
    DumpMetadata,
    RequestId,
    SpoolClient,
    SpoolServer,
    TruncatedDumpError,
    WrongShapeError,
    dump_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from extraction.spool import ServerInfo

    Capture = Callable[[SpoolServer, RequestId], npt.NDArray[np.uint16]]


@pytest.fixture
def path(server: SpoolServer, client: SpoolClient, rid: RequestId, capture: Capture) -> Path:
    """Let the server finish a dump."""
    capture(server, rid)
    return server.directory.finished(rid)


def test_the_safetensors_library_reads_a_dump(
    server: SpoolServer, client: SpoolClient, rid: RequestId, capture: Capture, states: Any
) -> None:
    hidden = capture(server, rid)

    path = server.directory.finished(rid)
    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()

    assert tensors["hidden_states"].dtype == ml_dtypes.bfloat16
    assert np.array_equal(tensors["hidden_states"].view(np.uint16), hidden)
    assert np.array_equal(tensors["input_ids"], states(rid.rows)[1])
    assert metadata == {
        "rid": str(rid),
        "instance": server.instance,
        "capture_hash": "c" * 64,
        "store": "store-uuid",
        "dtype": "bfloat16",
        "T": "10",
        "slots": "3",
    }


@pytest.mark.parametrize("rows", [1, 3, 511, 512, 513, 5000])
def test_the_size_is_known_exactly_and_the_states_begin_on_a_page(
    rows: int, server: SpoolServer, client: SpoolClient, info: ServerInfo, capture: Capture
) -> None:
    rid = RequestId("0123456789ab", 10**14, 10**8, rows)
    capture(server, rid)

    size = server.directory.finished(rid).stat().st_size

    assert size == dump_bytes(rows, info)
    with client.open_dump(rid) as dump:
        assert dump.layout.hidden_offset % 4096 == 0
        assert dump.layout.size_bytes == size


@pytest.mark.parametrize(
    ("dtype", "item", "code"), [("float16", "float16", "F16"), ("float32", "float32", "F32")]
)
def test_other_dtypes_are_laid_out_as_their_own(dtype: str, item: str, code: str) -> None:
    layout = DumpLayout(rows=2, slots=3, hidden=5, dtype=dtype)

    header = json.loads(layout.header(DumpMetadata("r", "i", "c", "s"))[8:])

    assert layout.item == np.dtype(item)
    assert header["hidden_states"]["dtype"] == code
    begin, end = header["hidden_states"]["data_offsets"]
    assert end - begin == 2 * 3 * 5 * np.dtype(item).itemsize


def test_metadata_that_does_not_fit_is_refused() -> None:
    layout = DumpLayout(rows=1, slots=1, hidden=1, dtype="bfloat16")

    with pytest.raises(ValueError, match="shorten"):
        layout.header(DumpMetadata("r", "i", "c", "s" * 5000))


def test_a_dump_cut_anywhere_is_refused(client: SpoolClient, rid: RequestId, path: Path) -> None:
    content = path.read_bytes()

    for size in (0, 5, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(TruncatedDumpError):
            client.open_dump(rid)


def test_a_file_that_is_too_long_is_refused(
    client: SpoolClient, rid: RequestId, path: Path
) -> None:
    path.write_bytes(path.read_bytes() + b"\0")

    with pytest.raises(WrongShapeError, match="bytes, should be"):
        client.open_dump(rid)


@pytest.mark.parametrize(
    "header",
    [b"not json", b"[]", b"{}", b'{"__metadata__": 3}', b'{"__metadata__": {}}', b"\xff\xfe"],
)
def test_a_header_of_something_else_is_refused(
    client: SpoolClient, rid: RequestId, path: Path, header: bytes
) -> None:
    content = path.read_bytes()
    room = int.from_bytes(content[:8], "little")
    path.write_bytes(content[:8] + header.ljust(room) + content[8 + room :])

    with pytest.raises(BadHeaderError):
        client.open_dump(rid)


def test_an_enormous_header_is_refused_unread(
    client: SpoolClient, rid: RequestId, path: Path
) -> None:
    path.write_bytes((1 << 20).to_bytes(8, "little") + bytes(2 << 20))

    with pytest.raises(BadHeaderError, match="at most"):
        client.open_dump(rid)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape":[10,3,6]', b'"shape":[10,6,3]'),
        (b'"dtype":"BF16"', b'"dtype":"F16" '),
        (b'"data_offsets":[0,40]', b'"data_offsets":[0,36]'),
        (b'"T":"10"', b'"T":"11"'),
        (b"-5-0-10", b"-6-0-10"),
    ],
)
def test_a_header_that_contradicts_its_name_or_itself_is_refused(
    client: SpoolClient, rid: RequestId, path: Path, old: bytes, new: bytes
) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))

    with pytest.raises(WrongShapeError):
        client.open_dump(rid)


@pytest.mark.parametrize("byte", range(0, 700, 7))
def test_a_damaged_header_is_never_anything_but_a_dump_error(
    client: SpoolClient, rid: RequestId, path: Path, byte: int
) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 0x10
    path.write_bytes(content)

    try:
        client.open_dump(rid).close()
    except DumpError:
        return
    assert byte > 8, "the length of the header was damaged and nobody noticed"


def test_a_dump_cannot_be_closed_while_its_rows_are_in_use(
    client: SpoolClient, rid: RequestId, path: Path
) -> None:
    dump = client.open_dump(rid)
    row = dump.hidden[3]

    with pytest.raises(DumpInUseError, match="still referenced"):
        dump.close()

    assert row.shape == (3, 6)
    del row
    dump.close()
    assert dump.closed


def test_an_exception_is_not_hidden_by_the_rows_it_holds(
    client: SpoolClient, rid: RequestId, path: Path
) -> None:
    def fail_with_rows() -> None:
        with client.open_dump(rid) as dump:
            rows = dump.hidden
            raise KeyError(len(rows))

    with pytest.raises(KeyError):
        fail_with_rows()


def test_a_dump_is_read_only(client: SpoolClient, rid: RequestId, path: Path) -> None:
    with client.open_dump(rid) as dump, pytest.raises(ValueError, match="read-only"):
        dump.hidden[0] = 0
