"""Read records out of JSONL, Parquet and Hugging Face Arrow folders, one at a time.

JSONL may be compressed with gzip or zstd; the first bytes tell, not the name. Arrow folders are what
`datasets.Dataset.save_to_disk` and `DatasetDict.save_to_disk` leave: ``state.json`` names the
``data-*.arrow`` files (Arrow IPC streams), ``dataset_dict.json`` names one subfolder a split.

Under a URL a file is an object, read piece by piece, and a folder is what these two name: nothing is listed.
"""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hsstore.location import Location, RemotePath

BATCH_ROWS: Final = 256
"""Rows of a Parquet file that are in memory at once."""
READ_BYTES: Final = 1 << 20

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
PARQUET_MAGIC: Final = b"PAR1"
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

STATE_FILE: Final = "state.json"
DICT_FILE: Final = "dataset_dict.json"


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One record as it was read, or the error that reading it gave."""

    path: Location
    """The file, or the Arrow folder."""
    number: int
    """1-based."""
    unit: Literal["line", "row"]
    value: dict[str, Any] | InputError
    split: str | None = None
    """The split of the folder that it lies in."""

    @property
    def location(self) -> str:
        """Where it is, as messages say it: ``chats.jsonl, line 7``."""
        return f"{self.path}, {self.unit} {self.number}"


def read_records(path: Location) -> Iterator[RawRecord]:
    """Read all records of one file or Arrow folder, in order.

    A line that is not a JSON object gives a record whose value is the error, so that the caller may
    go on; a file that cannot be read on raises.

    Raises
    ------
    InputError
        The file is missing, of no known kind, truncated or corrupt; or an object store refuses.
    UnreachableError
        An object store does not answer.
    """
    try:
        if not isinstance(path, Path):
            yield from _read_remote(path)
        elif path.is_dir():
            yield from _read_folder(path, split=None)
        else:
            with path.open("rb") as file:
                yield from _read_file(path, file)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _read_remote(url: RemotePath) -> Iterator[RawRecord]:
    file = None
    with suppress(FileNotFoundError):
        file = None if url.is_bucket else url.open()
    if file is not None:
        with file:
            yield from _read_file(url, file)
    elif any(_is_file(url / name) for name in (STATE_FILE, DICT_FILE)):
        yield from _read_folder(url, split=None)
    else:
        raise InputError(
            f"{url}: there is no such object, and no folder of Hugging Face save_to_disk "
            f"({STATE_FILE} or {DICT_FILE} below it)"
        )


def _read_file(path: Location, file: IO[bytes]) -> Iterator[RawRecord]:
    magic = file.read(4)
    file.seek(0)
    if magic == PARQUET_MAGIC:
        yield from _read_parquet(path, file)
    else:
        yield from _read_jsonl(path, _lines(_decompressed(path, file, magic)))


# ---- JSONL


def _decompressed(path: Location, file: IO[bytes], magic: bytes) -> Iterator[bytes]:
    if magic.startswith(GZIP_MAGIC):
        return _gunzipped(path, file)
    if magic == ZSTD_MAGIC:
        return _unzstd(path, file)
    return iter(lambda: file.read(READ_BYTES), b"")


def _gunzipped(path: Location, file: IO[bytes]) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            yield from iter(lambda: stream.read(READ_BYTES), b"")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the gzip stream is truncated or corrupt: {error}") from error


def _unzstd(path: Location, file: IO[bytes]) -> Iterator[bytes]:
    # Frame by frame: zstandard's stream reader takes a truncated frame for the end of the file.
    frame = None
    try:
        for chunk in iter(lambda: file.read(READ_BYTES), b""):
            rest = chunk
            while rest:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(rest)
                rest = frame.unused_data
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise InputError(f"{path}: the zstd stream is corrupt: {error}") from error
    if frame is not None:
        raise InputError(f"{path}: the zstd stream is truncated")


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    pending: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        pending.append(first)
        for line in others:
            yield b"".join(pending)
            pending = [line]
    yield b"".join(pending)


def _read_jsonl(path: Location, lines: Iterable[bytes]) -> Iterator[RawRecord]:
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if text.strip():
            yield RawRecord(path, number, "line", _parse_line(f"{path}, line {number}", text))


def _parse_line(location: str, line: bytes) -> dict[str, Any] | InputError:
    try:
        value = json.loads(line.decode(), parse_constant=_refuse_constant)
        if "\\u" in line.decode():
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair fails here
    except UnicodeDecodeError as error:
        return InputError(f"{location}: not UTF-8 at byte {error.start + 1}")
    except UnicodeEncodeError:
        return InputError(f"{location}: half of a surrogate pair in a \\u escape")
    except (ValueError, RecursionError) as error:
        return InputError(f"{location}: not valid JSON (one object a line is expected): {error}")
    if not isinstance(value, dict):
        return InputError(f"{location}: a JSON object is expected, not {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# ---- Parquet and Arrow


def _read_parquet(path: Location, file: IO[bytes]) -> Iterator[RawRecord]:
    batches = pq.ParquetFile(file).iter_batches(batch_size=BATCH_ROWS)
    yield from _read_batches(path, batches, split=None)


def _read_folder(folder: Location, split: str | None) -> Iterator[RawRecord]:
    if _is_file(folder / DICT_FILE):
        for name in _read_json(folder / DICT_FILE, "splits"):
            yield from _read_folder(folder / name, split=name)
        return
    if not _is_file(folder / STATE_FILE):
        raise InputError(
            f"{folder}: not a folder of Hugging Face save_to_disk "
            f"(no {STATE_FILE} or {DICT_FILE} in it); name the files themselves"
        )
    files = _read_json(folder / STATE_FILE, "_data_files")
    paths = [folder / entry["filename"] for entry in files]
    yield from _read_batches(folder, _arrow_batches(paths), split or _own_split(folder))


def _is_file(path: Location) -> bool:
    if isinstance(path, Path):
        return path.is_file()
    try:
        path.get(0, 1)
    except FileNotFoundError:
        return False
    return True


def _own_split(folder: Location) -> str | None:
    split = json.loads((folder / STATE_FILE).read_bytes()).get("_split")
    return split if isinstance(split, str) else None


def _read_json(path: Location, key: str) -> Any:  # noqa: ANN401 - the caller knows what lies there
    try:
        return json.loads(path.read_bytes())[key]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no {key!r} in it, or not valid JSON") from error


def _arrow_batches(paths: Iterable[Location]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        opened = pa.memory_map(str(path)) if isinstance(path, Path) else path.open()
        with opened as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)


def _read_batches(
    path: Location, batches: Iterable[pa.RecordBatch], split: str | None
) -> Iterator[RawRecord]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield RawRecord(path, number, "row", _without_nulls(row), split)


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Drop null fields: Arrow gives every struct all fields of its type, null where absent.

    Templates ask whether ``tool_calls`` is there, not whether it is null.
    """
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
