"""Sample files on disk: `torch.save`'s and safetensors. The one module of the formats that needs torch.

Nothing of a file is ever executed: torch reads tensors and plain values, and refuses whatever else a pickle
may hold (`weights_only`). A file gets its name when it is whole and on the disk.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import pickle
import uuid
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from hsstore.activity import operation
from hsstore.dtype import native_dtype
from hsstore.files import PARTIAL_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.formats.sample import Content

SAFETENSORS: Final = ".safetensors"
ZIP_MAGIC: Final = b"PK"
REMARK: Final = "hsstore"
LARGEST_HEADER_BYTES: Final = 100_000_000
"""Of a safetensors file, as safetensors itself has it."""

Unreadable = Literal["truncated", "unsafe", "foreign"]
"""A file that ends too early; one that wants to run code; one that is something else."""


class UnreadableFileError(Exception):
    """A file that cannot be read; never the end of a run over many."""

    def __init__(self, kind: Unreadable, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


# --- writing ----------------------------------------------------------------------------------


def write_file(
    path: Path,
    content: Any,  # noqa: ANN401  # a mapping of values, or one value
    remark: str = "",
) -> int:
    """Write a file that is whole and durable before it has its name; return its bytes.

    The directory is not fsynced: whoever writes many files does that once.

    Parameters
    ----------
    content : Content
        As `read_file` gives it; `torch.save` also takes a single array.
    remark : str
        Is kept in a safetensors file, where no trainer looks: `read_remark` returns it.

    Raises
    ------
    OSError
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}")
    try:
        with operation("write", partial):
            if path.suffix == SAFETENSORS:
                _save_safetensors(partial, content, remark)
            else:
                _save_torch(partial, content)
        _require_whole(partial, path.suffix)
        size = partial.stat().st_size
        with operation("rename", path):
            partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return size


def _save_torch(path: Path, content: Any) -> None:  # noqa: ANN401
    import torch  # noqa: PLC0415  # takes seconds, and names of formats are wanted without it

    with path.open("wb") as file:
        torch.save(_to_torch(content), file)
        file.flush()
        with operation("fsync", path):
            os.fsync(file.fileno())


def _save_safetensors(path: Path, content: Content, remark: str) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    # One entry at most: several come in any order, and equal files should be equal.
    save_file(_to_torch(content), path, metadata={REMARK: remark} if remark else None)
    with path.open("rb") as file, operation("fsync", path):
        os.fsync(file.fileno())


def _to_torch(value: Any) -> Any:  # noqa: ANN401  # tensors of arrays, and plain values as they are
    import torch  # noqa: PLC0415

    if isinstance(value, dict):
        return {key: _to_torch(one) for key, one in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    array = np.ascontiguousarray(value)
    if array.dtype == native_dtype("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _require_whole(partial: Path, suffix: str) -> None:
    if not is_whole(partial, suffix):
        raise OSError(errno.EIO, "what was written does not read back", str(partial))


def is_whole(path: Path, suffix: str | None = None) -> bool:
    """Say whether a file has all the bytes that it should have: its end says so, or its header.

    Parameters
    ----------
    suffix : str, optional
        What kind of file it is, if its name does not end so.
    """
    try:
        if (suffix or path.suffix) == SAFETENSORS:
            return _safetensors_bytes(path) == path.stat().st_size
        with zipfile.ZipFile(path):
            return True
    except (FileNotFoundError, ValueError, zipfile.BadZipFile):
        return False


def read_remark(path: Path) -> str:
    """Return what was remarked in a whole safetensors file."""
    with path.open("rb") as file:
        size = file.read(8)
        return remark_of(size + file.read(int.from_bytes(size, "little")))


def remark_of(head: bytes) -> str:
    """Return what was remarked in a safetensors file that begins so.

    Raises
    ------
    ValueError
        Its header is longer, or it is none.
    """
    header = json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])
    return str(header.get("__metadata__", {}).get(REMARK, ""))


def _safetensors_bytes(path: Path) -> int:
    """Return how many bytes a file has by its header, or at least, where that is cut off.

    Raises
    ------
    ValueError
        It has none.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > LARGEST_HEADER_BYTES:
            raise ValueError("no safetensors header")
        text = file.read(size)
        if len(text) < size:  # more than there is
            return 8 + size
        header = json.loads(text)
    try:
        header.pop("__metadata__", None)
        ends = [one["data_offsets"][1] for one in header.values()]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("no safetensors header") from error
    return 8 + size + max(ends, default=0)


# --- reading ----------------------------------------------------------------------------------


def read_file(path: Path, *, mapped: bool = False) -> Content:
    """Read what a file holds.

    Parameters
    ----------
    mapped : bool
        Leave tensors on the disk until they are looked at, where the file allows it.

    Returns
    -------
    mapping
        Tensors as arrays; bfloat16 as that of ml_dtypes.

    Raises
    ------
    UnreadableFileError
        It is cut off, it is no such file, or it is a pickle of more than plain values, which is not loaded.
    OSError
        The disk failed.
    """
    try:
        if path.suffix == SAFETENSORS:
            content = _load_safetensors(path)
        else:
            content = _to_numpy(_load_torch(path, mapped=mapped))
    except (TypeError, RuntimeError) as error:
        detail = f"a tensor that NumPy has not: {_first_line(error)}"
        raise UnreadableFileError("foreign", detail) from None
    if not isinstance(content, dict):
        raise UnreadableFileError("foreign", f"holds a {type(content).__name__}, not a mapping")
    return content


def _load_torch(path: Path, *, mapped: bool) -> Any:  # noqa: ANN401  # whatever it holds
    import torch  # noqa: PLC0415

    source = _gunzipped(path) if path.suffix == ".gz" else path
    try:
        is_zip = _starts_as_zip(source)
        return torch.load(
            source, map_location="cpu", weights_only=True, mmap=mapped and is_zip and source is path
        )
    except pickle.UnpicklingError as error:
        raise _not_loaded(error) from None
    except (RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableFileError(
            "truncated", f"cut off or damaged: {_first_line(error)}"
        ) from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Of a short file torch looks for the end of its zip archive before its beginning.
        raise UnreadableFileError(
            "truncated", "cut off or damaged: no end of its archive"
        ) from None


def _not_loaded(error: pickle.UnpicklingError) -> UnreadableFileError:
    """Tell what holds code, or would, from what is no pickle at all: torch has one error for both."""
    text = str(error)
    if "Unsupported global" in text or "Unsupported class" in text or "GLOBAL" in text:
        detail = "a pickle of more than tensors and plain values; not loaded, it might run code"
        return UnreadableFileError("unsafe", detail)
    return UnreadableFileError("foreign", "not a file of torch.save, or a damaged one")


def _first_line(error: Exception) -> str:
    text = str(error).split("\n")[0].split(". ")[0]
    return text[:200] or type(error).__name__


def _starts_as_zip(source: Path | io.BytesIO) -> bool:
    if isinstance(source, io.BytesIO):
        return source.getvalue()[:2] == ZIP_MAGIC
    with source.open("rb") as file:
        start = file.read(2)
    if not start:
        raise EOFError("empty")
    return start == ZIP_MAGIC


def _gunzipped(path: Path) -> io.BytesIO:
    try:
        with gzip.open(path) as file:
            return io.BytesIO(file.read())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableFileError("truncated", f"gzip: {_first_line(error)}") from None


def _load_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        expected = _safetensors_bytes(path)
    except ValueError:
        kind: Unreadable = "foreign" if path.stat().st_size >= 8 else "truncated"
        raise UnreadableFileError(kind, "no safetensors header") from None
    if (size := path.stat().st_size) < expected:
        raise UnreadableFileError("truncated", f"{size:,} of {expected:,} bytes")
    try:
        with safe_open(path, "pt") as file:  # mapped by itself
            return {name: _to_numpy(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UnreadableFileError("foreign", f"safetensors: {_first_line(error)}") from None


def _to_numpy(value: Any) -> Any:  # noqa: ANN401  # as it came from torch, inside containers too
    import torch  # noqa: PLC0415

    if isinstance(value, torch.Tensor):
        tensor = value.detach().contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(native_dtype("bfloat16"))
        return tensor.numpy()
    if isinstance(value, dict):
        return {key: _to_numpy(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_numpy(one) for one in value)
    return value
