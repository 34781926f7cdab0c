"""`hsstore-export.json`: what a directory was made from, and whether it is finished."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

import xxhash
from pydantic import ValidationError

from hsstore.dtype import native_dtype
from hsstore.errors import InputError, RefusedError
from hsstore.export.choose import states_hash
from hsstore.files import make_directory, output_errors
from hsstore.report import ExportRecord
from hsstore.run_record import now
from hsstore.subset import to_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from hsstore.location import Location
    from hsstore.report import ExportRequest
    from hsstore.spec import FinalState, Model
    from hsstore.store import Store

NAME = "hsstore-export.json"


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Create a directory, and keep other exports out of it.

    Raises
    ------
    RefusedError
        One is writing there.
    OutputError
    """
    with output_errors(directory):
        make_directory(directory)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RefusedError(f"another export is writing to {directory}; wait for it") from None
    except OSError:  # a file system without locks: two exports would write the same files
        return


def read_record(root: Location) -> ExportRecord | None:
    """Return what a place says of itself; None where it says nothing.

    Raises
    ------
    InputError
        Its record is damaged, or cannot be read.
    """
    path = root / NAME
    try:
        return ExportRecord.model_validate_json(path.read_bytes(), extra="ignore")
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise InputError(f"{path}: {error}") from None


def record_bytes(record: ExportRecord) -> bytes:
    """Return a record as it is stored."""
    return record.model_dump_json(indent=2).encode()


def norm_hash(weight: npt.NDArray[np.float32], model: Model) -> str:
    """Hash the weight of a final norm, (hidden,), as a server has it that rounds to the states' dtype."""
    return xxhash.xxh3_128_hexdigest(weight.astype(native_dtype(model.dtype)).tobytes())


def new_record(
    store: Store, request: ExportRequest, final: FinalState, samples: npt.NDArray[np.int64]
) -> ExportRecord:
    """Describe an export that begins now."""
    model = store.spec.model
    return ExportRecord(
        created=now(),
        created_by=f"hsstore {version('hsstore')}",
        request=request,
        model=model,
        norm_hash=norm_hash(store.plan_array("norm_weight"), model),
        layer_inputs=tuple(layer + 1 for layer in model.layers),
        final=final,
        samples=to_ranges(samples),
        states_hash=states_hash(store, samples),
    )


def refuse_other(directory: Location, recorded: ExportRequest, request: ExportRequest) -> None:
    """Refuse to go on with a directory that another command has begun.

    Raises
    ------
    RefusedError
    """
    theirs = recorded.model_dump()
    for name, value in request.model_dump().items():
        if theirs[name] != value:
            raise RefusedError(
                f"{directory} was made by another export: {name} was {theirs[name]!r} and is {value!r} now; "
                "give the same options, or another directory"
            )
