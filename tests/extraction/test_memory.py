"""`extract` keeps to its memory budget and 300 MB, however long its samples are, or many."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tests.extraction.fake_server
from extraction.spool import Norm
from tests.extraction.processes import Extraction, verify, wait_until
from tests.extraction.tiny import write_data
from tests.faults.fake import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from extraction.spool import ServerInfo

HIDDEN = 4096
ROW_BYTES = 3 * HIDDEN * 2
ALLOWANCE_BYTES = 300_000_000
"""For Python, its libraries, and chunks that are being encoded."""
LONG_ROWS = 16_384
LONG_BYTES = LONG_ROWS * ROW_BYTES
"""400 MB: a second copy of such a sample would not fit into the allowance."""
SMALL_BUDGET_BYTES = 50_000_000
"""Eight times as much passes through it."""
BLOCK_ROWS = 8


def repeated_states(
    input_ids: npt.NDArray[np.int32], info: ServerInfo, offset: float = 0.0
) -> npt.NDArray[np.uint16]:
    """Stand in for `fake_states`, which takes long for so many: a block of rows over and over."""
    generator = np.random.default_rng(input_ids[:1].tolist())
    block = generator.normal(size=(BLOCK_ROWS, info.slots, info.hidden)).astype(np.float32)
    bits = (block.view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(bits, (len(input_ids), info.slots, info.hidden))


def peak_of(extraction: Extraction) -> int:
    """Return the most memory that the worker ever had, mapped dumps included, until it ends."""
    peak_kb = 0

    def has_ended() -> bool:
        nonlocal peak_kb
        if worker := extraction.worker():
            peak_kb = max(peak_kb, _peak_kb(worker.pid))
        return extraction.process.poll() is not None

    try:
        wait_until(has_ended, 300)
    finally:
        extraction.kill()
    return 1024 * peak_kb


def _peak_kb(pid: int) -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) if found else 0  # a process that ends has none


@pytest.mark.parametrize(
    ("lengths", "memory_bytes"),
    [
        pytest.param([LONG_ROWS, 40], LONG_BYTES + 1_000_000, id="one very long sample"),
        pytest.param([20, 60, 100] * 100, SMALL_BUDGET_BYTES, id="many short samples"),
    ],
)
def test_the_peak_is_below_the_budget_and_a_constant(
    store: Path,
    room: Path,
    monkeypatch: pytest.MonkeyPatch,
    lengths: Sequence[int],
    memory_bytes: int,
) -> None:
    monkeypatch.setattr(tests.extraction.fake_server, "fake_states", repeated_states)
    data = write_data(room / f"memory-{len(lengths)}.jsonl", lengths)
    budget = ["--memory-gb", str(memory_bytes / 1e9)]

    norm = Norm("rmsnorm", 1e-6, np.ones(HIDDEN, "<f4").tobytes())

    with serving(store.parent / "spool", len(lengths), hidden=HIDDEN, norm=norm) as server:
        extraction = Extraction(store, server, "--data", data, *budget)
        peak_bytes = peak_of(extraction)

    assert extraction.process.returncode == 0, extraction.log()
    assert peak_bytes < memory_bytes + ALLOWANCE_BYTES
    verify(store, len(lengths))
