"""Every error that hsstore raises on purpose, grouped by what the caller will do about it.

::

    HsstoreError
    ├── InputError            exit 2   the command line or the data is wrong: correct it
    ├── RefusedError          exit 3   the store belongs to another model, plan or owner
    ├── CorruptStoreError     exit 1   stored bytes are not what was promised: verify, repair
    ├── NotExtractedError     exit 1   this sample has no payload (pending or failed)
    ├── OutputError           exit 74  the output file system refused: full, read-only, broken
    ├── InterruptedRunError   exit 75  stopped or stalled: run the same command again
    └── UnreachableError      exit 75  an object store does not answer: run the same command again

Whatever else ends a run is a bug, not one of these: exit 70, "unexpected", with its cause.

A message says what was found, where (file, line, sample, field), and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class HsstoreError(Exception):
    """Base class. `exit_code` is what a command returns when this error ends it."""

    exit_code: ClassVar[int] = 1


class InputError(HsstoreError):
    """The command line or the input data is wrong."""

    exit_code = 2


class RefusedError(HsstoreError):
    """The operation is refused: another model, layers, dtype, dataset, or another owner."""

    exit_code = 3


class CorruptStoreError(HsstoreError):
    """Stored bytes contradict a promise of the store, such as a crc or a digest."""


class NotExtractedError(HsstoreError, LookupError):
    """The sample has no payload: it is pending, or it failed for a recorded reason."""


class OutputError(HsstoreError):
    """The output file system refused a write."""

    exit_code = 74


class InterruptedRunError(HsstoreError):
    """The run was stopped or stalled. Nothing committed is lost; a rerun continues."""

    exit_code = 75


class UnreachableError(HsstoreError):
    """An object store did not answer, also after several attempts. No `OSError`: it is no damage."""

    exit_code = 75
