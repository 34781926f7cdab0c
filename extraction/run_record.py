"""What the store keeps of a run: when, where, with which server and which options."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from hsstore.files import unsupported
from hsstore.spec import RunRecord

if TYPE_CHECKING:
    from extraction.options import ExtractOptions
    from extraction.spool import ServerInfo
    from hsstore.spec import CanaryRecord


def begin_record(run: str, info: ServerInfo, options: ExtractOptions) -> RunRecord:
    """Describe a run that begins now."""
    return RunRecord(
        run=run,
        started=_now(),
        host=socket.gethostname(),
        pid=os.getpid(),
        hsstore_version=version("hsstore"),
        capture_hash=info.capture_hash,
        engine=info.engine,
        engine_version=info.engine_version,
        server_instance=info.instance,
        server_flags=info.flags,
        options=options.model_dump(mode="json"),
        output_warnings=unsupported(),
    )


def end_record(record: RunRecord, result: str, canary: CanaryRecord) -> RunRecord:
    """Add how the run ended."""
    return record.model_copy(
        update={
            "ended": _now(),
            "result": result,
            "canary": canary,
            "output_warnings": unsupported(),
        }
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
