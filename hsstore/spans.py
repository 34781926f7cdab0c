"""The files of the completion arrays: each span of one is plain, its values and their crc32c.

Zarr reads them as well, ten times slower: a store has hundreds of these files, a run reads all of
them several times before its first request, and a reader needs one for each sample.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from hsstore.activity import operation
from hsstore.errors import CorruptStoreError
from hsstore.files import output_errors, read_again_if_stale, write_durably
from hsstore.location import RemotePath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.location import Location

CRC_BYTES = 4
DTYPES: dict[str, np.dtype[Any]] = {
    "complete": np.dtype(np.bool_),
    "failed": np.dtype(np.uint8),
    "digest": np.dtype("<u8"),
}


def read_spans(
    root: Location, name: str, samples: int, span_samples: int, where: slice
) -> npt.NDArray[Any]:
    """Read part of a completion array, fresh.

    Parameters
    ----------
    samples : int
        Of the store.
    where : slice
        Of samples, in steps of 1.

    Returns
    -------
    bool, uint8 or uint64 (samples,)
        Zeros where nothing was ever committed.

    Raises
    ------
    CorruptStoreError
        A file has not the right size, or does not pass its crc32c.
    """
    start, stop, _ = where.indices(samples)
    values = np.zeros(max(stop - start, 0), DTYPES[name])
    spans = range(start // span_samples, -(-stop // span_samples))
    with operation("read", root / name):
        for span, data in zip(spans, _files(root / name, spans), strict=True):
            first = span * span_samples
            begin, end = max(start, first), min(stop, first + span_samples)
            chunk, problem = _decode(data, DTYPES[name], span_samples)
            if problem:
                raise CorruptStoreError(f"array {name}: c.{span} {problem}")
            values[begin - start : end - start] = chunk[begin - first : end - first]
    return values


def _files(array: Location, spans: range) -> Iterator[bytes | None]:
    """Yield the files of spans; None where there is none, which only the file system itself can say."""
    if isinstance(array, RemotePath):
        from hsstore.objects import Request, read_many  # noqa: PLC0415  # brings fsspec

        for answer in read_many([Request(str(array / f"c.{span}")) for span in spans]):
            yield None if answer is None else answer.data
        return
    for span in spans:
        yield _file(array / f"c.{span}")


def _file(path: Location) -> bytes | None:
    try:
        return read_again_if_stale(path.read_bytes)
    except FileNotFoundError:
        return None


def read_span(path: Location, dtype: npt.DTypeLike, count: int) -> tuple[npt.NDArray[Any], str]:
    """Read the file of one span, whatever its state.

    Returns
    -------
    values : dtype (count,)
        As they are, also of a damaged file; zeros where nothing was ever committed.
    problem : str
        What is wrong with the file; empty where it is as it was written.

    Raises
    ------
    OSError
    """
    return _decode(_file(path), dtype, count)


def _decode(data: bytes | None, dtype: npt.DTypeLike, count: int) -> tuple[npt.NDArray[Any], str]:
    if data is None:
        return np.zeros(count, dtype), ""
    body, crc = data[:-CRC_BYTES], data[-CRC_BYTES:]
    size = count * np.dtype(dtype).itemsize
    problem = ""
    if len(body) != size:
        problem = f"has {len(data)} bytes, expected {size + CRC_BYTES}"
        body = body[:size].ljust(size, b"\0")
    elif struct.pack("<I", google_crc32c.value(body)) != crc:
        problem = "does not pass its crc32c"
    return np.frombuffer(body, dtype), problem


def write_span(path: Path, values: npt.NDArray[Any]) -> None:
    """Replace the file of one span, durably: it is the old one or the new one, also after a crash.

    Parameters
    ----------
    values : bool, uint8 or uint64 (samples of a span,)

    Raises
    ------
    OutputError
    """
    body = values.tobytes()
    with output_errors(path):
        write_durably(path, body + struct.pack("<I", google_crc32c.value(body)))
