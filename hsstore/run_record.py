"""What a store keeps of whoever writes states into it: when, where, with what, and how it ended."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from hsstore.files import unsupported
from hsstore.spec import RunRecord

if TYPE_CHECKING:
    from hsstore.spec import CanaryRecord


def now() -> str:
    """Return the time as records have it: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def begin_record(
    run: str,
    capture_hash: str,
    engine: str,
    options: dict[str, Any],
    *,
    engine_version: str | None = None,
    server_instance: str = "",
    server_flags: dict[str, Any] | None = None,
) -> RunRecord:
    """Describe a run that begins now, in this process.

    Parameters
    ----------
    engine : str
        What makes the states; if it is a part of hsstore, it has its version, and there is no server.
    """
    return RunRecord(
        run=run,
        started=now(),
        host=socket.gethostname(),
        pid=os.getpid(),
        hsstore_version=version("hsstore"),
        capture_hash=capture_hash,
        engine=engine,
        engine_version=engine_version or version("hsstore"),
        server_instance=server_instance,
        server_flags=server_flags or {},
        options=options,
        output_warnings=unsupported(),
    )


def end_record(record: RunRecord, result: str, canary: CanaryRecord | None = None) -> RunRecord:
    """Add how the run ended."""
    update = {"ended": now(), "result": result, "canary": canary, "output_warnings": unsupported()}
    return record.model_copy(update=update)
