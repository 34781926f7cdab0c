"""The spool protocol: how one server hands hidden states to one client through shared memory.

This package is the one implementation, used by both sides. It needs the standard library and numpy
only: it is installed into inference servers.
"""

from extraction.spool.client import (
    CaptureFailure,
    SpoolClient,
    SpoolFile,
    SpoolScan,
    SpoolView,
)
from extraction.spool.directory import default_spool
from extraction.spool.dump import DUMP_OVERHEAD_BYTES, Dump, DumpLayout, DumpMetadata, dump_bytes
from extraction.spool.errors import (
    BadHeaderError,
    CaptureError,
    DumpError,
    DumpInUseError,
    ErrorReason,
    NoServerError,
    SpoolBusyError,
    SpoolError,
    SpoolForeignError,
    SpoolMissingError,
    TruncatedDumpError,
    WrongShapeError,
)
from extraction.spool.heartbeat import Heartbeat
from extraction.spool.info import DTYPES, PROTOCOL, ClientInfo, Norm, ServerInfo
from extraction.spool.memory import headroom_bytes
from extraction.spool.names import RequestId
from extraction.spool.server import AttachedServer, SpoolServer
from extraction.spool.writer import PutState, SpoolWriter

__all__ = [
    "DTYPES",
    "DUMP_OVERHEAD_BYTES",
    "PROTOCOL",
    "AttachedServer",
    "BadHeaderError",
    "CaptureError",
    "CaptureFailure",
    "ClientInfo",
    "Dump",
    "DumpError",
    "DumpInUseError",
    "DumpLayout",
    "DumpMetadata",
    "ErrorReason",
    "Heartbeat",
    "NoServerError",
    "Norm",
    "PutState",
    "RequestId",
    "ServerInfo",
    "SpoolBusyError",
    "SpoolClient",
    "SpoolError",
    "SpoolFile",
    "SpoolForeignError",
    "SpoolMissingError",
    "SpoolScan",
    "SpoolServer",
    "SpoolView",
    "SpoolWriter",
    "TruncatedDumpError",
    "WrongShapeError",
    "default_spool",
    "dump_bytes",
    "headroom_bytes",
]
