"""A dump: one request's hidden states as one safetensors file.

`hidden_states` BF16|F16|F32 [T, slots, hidden] and `input_ids` I32 [T]; `__metadata__` holds the
strings of `DumpMetadata`. The header's space is fixed, so a dump's exact size is known before the
request; the hidden states begin on a page. Format: github.com/huggingface/safetensors, README.
"""

from __future__ import annotations

import json
import mmap
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from extraction.spool.errors import (
    BadHeaderError,
    DumpInUseError,
    TruncatedDumpError,
    WrongShapeError,
)
from extraction.spool.info import DTYPES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from extraction.spool.info import ServerInfo
    from extraction.spool.names import RequestId

_PAGE: Final = 4096
_HEADER_ROOM: Final = 2048
_LARGEST_HEADER: Final = _HEADER_ROOM + _PAGE
DUMP_OVERHEAD_BYTES: Final = _LARGEST_HEADER
"""What a dump has at most beside its states and its input ids."""
_LENGTH_BYTES: Final = 8
"""A safetensors file begins with its header's length, u64 little-endian."""

_NUMPY: Final[dict[str, np.dtype[Any]]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
}
"""numpy has no bfloat16: those come as raw bits."""


@dataclass(frozen=True, slots=True)
class DumpMetadata:
    """Where a dump comes from. Strings, as safetensors wants them."""

    rid: str
    instance: str
    capture_hash: str
    store: str


@dataclass(frozen=True, slots=True)
class DumpLayout:
    """Where everything lies in the file: a pure function of the shape."""

    rows: int
    slots: int
    hidden: int
    dtype: str
    """A key of `DTYPES`."""

    @property
    def item(self) -> np.dtype[Any]:
        """Numpy dtype of the hidden states; uint16 stands for bfloat16."""
        return _NUMPY[DTYPES[self.dtype]]

    @property
    def hidden_offset(self) -> int:
        """Byte where the hidden states begin; a multiple of the page size."""
        return -(-(_HEADER_ROOM + 4 * self.rows) // _PAGE) * _PAGE

    @property
    def ids_offset(self) -> int:
        """Byte where the input ids begin: they end where the hidden states begin."""
        return self.hidden_offset - 4 * self.rows

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, slots, hidden)."""
        return self.rows, self.slots, self.hidden

    @property
    def row_bytes(self) -> int:
        """Hidden states of one row."""
        return self.slots * self.hidden * self.item.itemsize

    @property
    def size_bytes(self) -> int:
        """Exact size of the file."""
        return self.hidden_offset + self.rows * self.row_bytes

    def header(self, metadata: DumpMetadata) -> bytes:
        """Build all that comes before the input ids, padded with spaces as the format allows."""
        ids_bytes = 4 * self.rows
        data_bytes = self.size_bytes - self.ids_offset
        strings = {"dtype": self.dtype, "T": str(self.rows), "slots": str(self.slots)}
        content = {
            "__metadata__": asdict(metadata) | strings,
            "input_ids": {"dtype": "I32", "shape": [self.rows], "data_offsets": [0, ids_bytes]},
            "hidden_states": {
                "dtype": DTYPES[self.dtype],
                "shape": self.shape,
                "data_offsets": [ids_bytes, data_bytes],
            },
        }
        text = json.dumps(content, separators=(",", ":")).encode()
        room = self.ids_offset - _LENGTH_BYTES
        if len(text) > room:
            raise ValueError(f"header of {len(text)} bytes, room for {room}: shorten {metadata}")
        return room.to_bytes(_LENGTH_BYTES, "little") + text.ljust(room)


def dump_bytes(rows: int, info: ServerInfo) -> int:
    """Exact size in bytes of the dump of a request of `rows` tokens on this server."""
    return DumpLayout(rows, info.slots, info.hidden, info.dtype).size_bytes


class Dump:
    """A finished dump, mapped read-only. A context manager; `close` drops the mapping.

    Attributes
    ----------
    rid : RequestId
    layout : DumpLayout
    metadata : DumpMetadata
    """

    def __init__(self, rid: RequestId, path: Path) -> None:
        """Map the file and check its header.

        Raises
        ------
        DumpError
            Truncated, not a dump, or another shape than the name says.
        """
        self.rid = rid
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(descriptor).st_size
            header, length = _read_header(descriptor, size_bytes)
            self.layout, self.metadata = _check(header, rid)
            _check_sizes(self.layout, length, size_bytes)
            self._map = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)

    @property
    def hidden(self) -> npt.NDArray[Any]:
        """Hidden states, shape (T, slots, hidden): uint16 for bfloat16, else float16 or float32."""
        flat = np.frombuffer(self._map, self.layout.item, offset=self.layout.hidden_offset)
        return flat.reshape(self.layout.shape)

    @property
    def input_ids(self) -> npt.NDArray[np.int32]:
        """The ids as the server saw them, shape (T,)."""
        return np.frombuffer(self._map, "<i4", self.layout.rows, self.layout.ids_offset)

    @property
    def closed(self) -> bool:
        """Whether the mapping is gone."""
        return self._map.closed

    def close(self) -> None:
        """Drop the mapping. May be called twice.

        Raises
        ------
        DumpInUseError
            An array of this dump is still referenced: its bytes would change under it.
        """
        try:
            self._map.close()
        except BufferError:
            raise DumpInUseError(f"{self.rid}: arrays of this dump are still referenced") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except DumpInUseError:
            if kind is None:
                raise  # else the traceback in flight is what references the arrays


def _read_header(descriptor: int, size_bytes: int) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(os.pread(descriptor, _LENGTH_BYTES, 0), "little")
    if size_bytes < _LENGTH_BYTES or length > size_bytes - _LENGTH_BYTES:
        raise TruncatedDumpError(f"{size_bytes} bytes, its header alone should have {length}")
    if length > _LARGEST_HEADER:
        raise BadHeaderError(f"header of {length} bytes, at most {_LARGEST_HEADER} expected")
    try:
        header = json.loads(os.pread(descriptor, length, _LENGTH_BYTES))
    except ValueError as error:
        raise BadHeaderError(f"header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise BadHeaderError(f"header is a {type(header).__name__}")
    return header, length


def _check(header: dict[str, Any], rid: RequestId) -> tuple[DumpLayout, DumpMetadata]:
    """Compare the header with the one that a dump of this name and shape must have."""
    try:
        strings = dict(header["__metadata__"])
        metadata = DumpMetadata(*(strings[key] for key in DumpMetadata.__slots__))
        rows, slots, hidden = header["hidden_states"]["shape"]
        layout = DumpLayout(rows, slots, hidden, strings["dtype"])
        expected = json.loads(layout.header(metadata)[_LENGTH_BYTES:])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadHeaderError(f"{rid}: not the header of a dump: {error!r}") from None
    if metadata.rid != str(rid) or rows != rid.rows or header != expected:
        raise WrongShapeError(f"{rid}: the header describes another dump: {header}")
    return layout, metadata


def _check_sizes(layout: DumpLayout, length: int, size_bytes: int) -> None:
    if size_bytes < layout.size_bytes:
        raise TruncatedDumpError(f"{size_bytes} bytes, should be {layout.size_bytes}")
    if size_bytes > layout.size_bytes or length + _LENGTH_BYTES != layout.ids_offset:
        raise WrongShapeError(
            f"{size_bytes} bytes, should be {layout.size_bytes}; header of {length} bytes, "
            f"should be {layout.ids_offset - _LENGTH_BYTES}"
        )
