"""What the fake server's model gives: noise that follows from the tokens; and how it can be spoilt."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np

from extraction.spool import Norm, ServerInfo

if TYPE_CHECKING:
    import numpy.typing as npt

    from extraction.spool import SpoolServer

HIDDEN = 16
NAN, INFINITY = 0x7FC0, 0x7F80


class Fault(Enum):
    """What goes wrong with one request."""

    WRONG_TOKENS = auto()
    NAN_ROW = auto()
    INFINITY = auto()
    ZERO_ROW = auto()
    EQUAL_SLOTS = auto()
    TRUNCATED = auto()
    WRONG_DTYPE = auto()
    WRONG_SHAPE = auto()
    OTHER_STORE = auto()
    OTHER_CAPTURE = auto()
    OTHER_INSTANCE = auto()
    BAD_REQUEST = auto()
    SERVER_ERROR = auto()
    RESET = auto()
    NO_DUMP = auto()
    LATE_DUMP = auto()
    NO_ANSWER = auto()
    OVERRUN = auto()
    FULL = auto()
    ENGINE = auto()
    ENGINE_THEN_500 = auto()
    ENGINE_AFTER_500 = auto()
    ABORTED = auto()
    ABORTED_IN_CAPTURE = auto()


ODD_DUMPS = (
    Fault.TRUNCATED,
    Fault.WRONG_DTYPE,
    Fault.WRONG_SHAPE,
    Fault.OTHER_STORE,
    Fault.OTHER_CAPTURE,
    Fault.OTHER_INSTANCE,
)


def spoil(ids: npt.NDArray[np.int32], states: npt.NDArray[np.uint16], fault: Fault | None) -> None:
    """Put a fault into what would be a good capture."""
    row = len(ids) // 2
    match fault:
        case Fault.WRONG_TOKENS:
            ids[row] += 1
        case Fault.NAN_ROW:
            states[row, 1] = NAN
        case Fault.INFINITY:
            states[row, -1, 3] = INFINITY
        case Fault.ZERO_ROW:
            states[row, 0] = 0
        case Fault.EQUAL_SLOTS:
            states[:, 2] = states[:, 0]
        case _:
            pass


def fake_info(spool: SpoolServer, url: str) -> ServerInfo:
    """Describe a model of 6 layers with three slots."""
    return ServerInfo(
        instance=spool.instance,
        capture_hash="f" * 64,
        model="fake",
        num_layers=6,
        hidden=HIDDEN,
        layers=(0, 3),
        final="post-norm",
        dtype="bfloat16",
        norm=Norm("rmsnorm", 1e-6, np.ones(HIDDEN, "<f4").tobytes()),
        engine="fake",
        engine_version="1",
        plugin_version="1",
        pid=1,
        host="here",
        url=url,
        isolated=True,
    )


def fake_states(
    input_ids: npt.NDArray[np.int32], info: ServerInfo, offset: float = 0.0
) -> npt.NDArray[np.uint16]:
    """Return the bits of bfloat16 states for some tokens, shape (T, slots, hidden)."""
    generator = np.random.default_rng(input_ids.tolist())
    shape = (len(input_ids), info.slots, info.hidden)
    values = generator.normal(offset, size=shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)
