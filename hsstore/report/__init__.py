"""What the commands report: the documents that `--json` prints, described in schemas/."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hsstore.report.against import AgainstReport, AgainstSample, AgainstSlot, AgainstVerdict
from hsstore.report.consolidation import Consolidation, ConsolidationSource, UnusableSample
from hsstore.report.diagnosis import Diagnosis, KillCost
from hsstore.report.export import Export, ExportRecord, ExportRequest
from hsstore.report.importing import Import, LeftFile, LeftKind, TakenSample
from hsstore.report.info import Info
from hsstore.report.semantic import SemanticBad, SemanticCheck, SemanticKind, SemanticReport
from hsstore.report.status import (
    RunReport,
    ServerReport,
    StageReport,
    StallReport,
    StatusReport,
    TotalReport,
)
from hsstore.report.verification import (
    Bad,
    BadCount,
    BadKind,
    Coverage,
    Lengths,
    Note,
    NoteKind,
    Repair,
    Sampling,
    Section,
    SlotNorms,
    Verification,
)
from hsstore.spec import RunRecord, StoreSpec

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = [
    "DOCUMENTS",
    "AgainstReport",
    "AgainstSample",
    "AgainstSlot",
    "AgainstVerdict",
    "Bad",
    "BadCount",
    "BadKind",
    "Consolidation",
    "ConsolidationSource",
    "Coverage",
    "Diagnosis",
    "Export",
    "ExportRecord",
    "ExportRequest",
    "Import",
    "Info",
    "KillCost",
    "LeftFile",
    "LeftKind",
    "Lengths",
    "Note",
    "NoteKind",
    "Repair",
    "RunReport",
    "Sampling",
    "Section",
    "SemanticBad",
    "SemanticCheck",
    "SemanticKind",
    "SemanticReport",
    "ServerReport",
    "SlotNorms",
    "StageReport",
    "StallReport",
    "StatusReport",
    "TakenSample",
    "TotalReport",
    "UnusableSample",
    "Verification",
]

DOCUMENTS: dict[str, type[BaseModel]] = {
    "store": StoreSpec,
    "run": RunRecord,
    "info": Info,
    "verify": Verification,
    "consolidate": Consolidation,
    "export": Export,
    "hsstore-export": ExportRecord,
    "import": Import,
    "doctor": Diagnosis,
    "status": StatusReport,
}
"""Every document that has a schema: `schemas/<name>.schema.json`."""
