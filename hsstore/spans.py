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
from hsstore.files import (
    output_errors,
    read_again_if_stale,
    refresh_attributes,
    write_durably,
)
from hsstore.location import RemotePath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    import numpy.typing as npt

    from hsstore.location import Location

    Name = Literal["complete", "failed", "digest"]

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
    paths: list[Location] = [root / name / f"c.{span}" for span in spans]
    for span, (data, _) in zip(spans, _files_and_versions(paths), strict=True):
        first = span * span_samples
        begin, end = max(start, first), min(stop, first + span_samples)
        chunk, problem = _decode(data, DTYPES[name], span_samples)
        if problem:
            raise CorruptStoreError(f"array {name}: c.{span} {problem}")
        values[begin - start : end - start] = chunk[begin - first : end - first]
    return values


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


def read_span_objects(
    paths: list[Location], dtype: npt.DTypeLike, count: int
) -> list[tuple[npt.NDArray[Any], str, str]]:
    """Read the objects of spans side by side, as `read_span` reads a file; the third is the version of each."""
    return [(*_decode(data, dtype, count), version) for data, version in _files_and_versions(paths)]


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


def write_span(path: Location, values: npt.NDArray[Any], replaces: str = "") -> str:
    """Replace the file of one span, durably: it is the old one or the new one, also after a crash.

    An object gets a version here that no `Span.write` has ever given it, also where it becomes what it was
    once: what was sent then, and comes late, must not find the version that it names.

    Parameters
    ----------
    values : bool, uint8 or uint64 (samples of a span,)
    replaces : str
        The version of the object that was read; files have none.

    Returns
    -------
    str
        The version of the new object; empty for a file.

    Raises
    ------
    OutputError
    ConflictError
        The object is another one by now: it is left as it is.
    """
    data = _encode(values)
    if isinstance(path, RemotePath):
        from hsstore.objects.files import put_parts  # noqa: PLC0415  # brings fsspec

        return put_parts(str(path), [lambda: data], replaces=replaces)
    with output_errors(path):
        write_durably(path, data)
    return ""


def _encode(values: npt.NDArray[Any]) -> bytes:
    body = values.tobytes()
    return body + struct.pack("<I", google_crc32c.value(body))


class Span:
    """The completion of one span, to be changed by its owner: what is written replaces what was read, and nothing else.

    So whoever was taken for dead, and goes on, writes nothing into an object store. On a disk only a claim keeps
    him from it.

    Parameters
    ----------
    root : Path or RemotePath
        The store.

    Attributes
    ----------
    first : int
        The number of its first sample.
    complete, failed, digest : bool, uint8, uint64 (samples of a span,)
        Zeros behind the last sample of the store.

    Raises
    ------
    CorruptStoreError
    """

    complete: npt.NDArray[np.bool_]
    failed: npt.NDArray[np.uint8]
    digest: npt.NDArray[np.uint64]

    def __init__(self, root: Location, span: int, span_samples: int) -> None:
        look_again(root)
        self.first = span * span_samples
        self._paths: dict[str, Location] = {name: root / name / f"c.{span}" for name in DTYPES}
        self._versions: dict[str, str] = {}
        found = _files_and_versions(list(self._paths.values()))
        for (name, dtype), (data, version) in zip(DTYPES.items(), found, strict=True):
            values, problem = _decode(data, dtype, span_samples)
            if problem:
                raise CorruptStoreError(f"array {name}: c.{span} {problem}")
            setattr(self, name, values.copy())
            self._versions[name] = version

    def write_cleared(self, name: Name) -> None:
        """Write one of the three in which something was taken back; raises what `write` does."""
        values = getattr(self, name)
        self._versions[name] = write_span(self._paths[name], values, self._versions[name])

    def outdate(self, samples: range) -> None:
        """Give the object of `complete` another version, if a commit of these samples came as far as their digests.

        Its bits may be under way still, though its run is dead: they must not come behind the states, which are about
        to be replaced. Raises what `write` does.
        """
        inside = slice(samples.start - self.first, samples.stop - self.first)
        is_half_done = (self.digest[inside] != 0) & ~self.complete[inside]
        if not is_half_done.any() or not isinstance(self._paths["complete"], RemotePath):
            return
        from hsstore.objects.files import came_in_parts  # noqa: PLC0415

        if came_in_parts(self._versions["complete"]):
            self.write("complete")
        else:
            self.write_cleared("complete")

    def write(self, *names: Name) -> None:
        """Write some of the three, side by side where they are objects.

        Raises
        ------
        OutputError
        ConflictError
            One is another by now, and is left as it is; others may have been written.
        """
        paths = [self._paths[name] for name in names]
        if not isinstance(paths[0], RemotePath):
            for path, name in zip(paths, names, strict=True):
                write_span(path, getattr(self, name))
            return
        from hsstore.objects.puts import ConflictError, Put  # noqa: PLC0415
        from hsstore.objects.write import put_many  # noqa: PLC0415

        puts = [
            Put(str(path), _encode(getattr(self, name)), self._versions[name])
            for path, name in zip(paths, names, strict=True)
        ]
        for name, put, version in zip(names, puts, put_many(puts), strict=True):
            if version is None:
                raise ConflictError(put.url)
            self._versions[name] = version


def spans_of(
    root: Location, span_samples: int, samples: npt.NDArray[np.int64]
) -> Iterator[tuple[Span, npt.NDArray[np.int64]]]:
    """Yield the spans of samples, and where in each these are."""
    for number in np.unique(samples // span_samples).tolist():
        span = Span(root, number, span_samples)
        yield span, samples[samples // span_samples == number] - span.first


def look_again(root: Location) -> None:
    """Have a network file system look which spans there are: it may have kept that one was missing."""
    if not isinstance(root, RemotePath):
        for name in DTYPES:
            refresh_attributes(root / name)


def _files_and_versions(paths: list[Location]) -> Iterator[tuple[bytes | None, str]]:
    """Yield what files hold, and of objects their versions; None where the store says that there is none."""
    if not paths:
        return
    if not isinstance(paths[0], RemotePath):
        with operation("read", paths[0]):
            yield from ((_file(path), "") for path in paths)
        return
    from hsstore.objects import Request, read_many  # noqa: PLC0415

    for answer in read_many([Request(str(path)) for path in paths]):
        yield (None, "") if answer is None else (answer.data, answer.version)
