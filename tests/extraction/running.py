"""Run the worker's code in this process: fast, and nothing that goes wrong in its tasks is lost.

The command around it, its signals and its deaths are tested with real processes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from extraction.options import DataOptions, ExtractOptions
from extraction.status import StatusPage
from extraction.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from extraction.status import RunStatus
    from hsstore.location import Location

SMALL = {"chunk_rows": 16, "shard_rows": 512, "span_samples": 25}
"""So small that a few dozen samples fill many blocks and several spans."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    code: int
    message: str
    status: RunStatus
    log: str


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


async def run_here(
    store: Location, url: str, spool: Path, data: Location | None = None, **options: Any
) -> Outcome:
    """Run to the end; fails when asyncio complains of a task, a future or a callback."""
    before = asyncio.all_tasks()
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, one: complaints.append(one))
    files = (data,) if data else ()
    wanted = ExtractOptions(
        store=store, server=url, spool=spool, data=DataOptions(files=files), **(SMALL | options)
    )
    page, log = StatusPage.create(spool.parent), _Log()
    logging.getLogger("extraction").addHandler(log)
    try:
        code = await Worker(wanted, page).main()
        status = page.read()
    finally:
        logging.getLogger("extraction").removeHandler(log)
        page.remove()
    await _no_tasks_left(before)
    gc.collect()
    assert not complaints, complaints
    assert status is not None
    return Outcome(code, status.message, status, "\n".join(log.lines))


async def _no_tasks_left(before: set[asyncio.Task[Any]]) -> None:
    """Let cancelled tasks end; whatever still runs then, and is new, was forgotten."""
    await asyncio.sleep(0.01)
    left = [
        task
        for task in asyncio.all_tasks() - before
        if "extraction/" in task.get_coro().cr_code.co_filename  # type: ignore[union-attr]
        and "tests/" not in task.get_coro().cr_code.co_filename  # type: ignore[union-attr]
    ]
    assert not left
