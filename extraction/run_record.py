"""What the store keeps of an extraction: beside when and where, with which server and which options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hsstore import run_record

if TYPE_CHECKING:
    from extraction.options import ExtractOptions
    from extraction.spool import ServerInfo
    from hsstore.spec import RunRecord, ServerRecord


def begin_record(
    run: str, info: ServerInfo, options: ExtractOptions, servers: tuple[ServerRecord, ...]
) -> RunRecord:
    """Describe a run that begins now; `info` is that of the first server."""
    record = run_record.begin_record(
        run,
        info.capture_hash,
        info.engine,
        options.model_dump(mode="json"),
        engine_version=info.engine_version,
        server_instance=info.instance,
        server_flags=info.flags,
    )
    return record.model_copy(update={"servers": servers})
