"""What is slow on our own side, and no stall: a large plan, many dumps of a dead run."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import extraction.lane
from extraction.salvage import salvage
from hsstore.activity import ticks
from hsstore.arrays import Arrays
from hsstore.testing.stores import make_store
from tests.doctor.conftest import SAMPLES
from tests.extraction.fake_server import serve_fake
from tests.extraction.running import run_here

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_each_piece_of_a_plan_that_is_written_is_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    write = Arrays.write

    def note(self: Arrays, *piece: Any) -> None:
        write(self, *piece)
        seen.append(ticks())

    monkeypatch.setattr(Arrays, "write", note)
    make_store(tmp_path / "s.zarr", [3, 9, 40])

    assert len(seen) > 3
    assert seen == sorted(set(seen))


async def test_the_run_goes_on_saying_how_it_is_while_dumps_of_a_dead_run_are_read(
    place: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop is what publishes; while that stands still, the doctor calls it stuck."""
    loop = asyncio.get_running_loop()
    went_on: list[bool] = []

    def slowly(*arguments: Any) -> Any:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        went_on.append(turned.wait(30))
        return salvage(*arguments)

    monkeypatch.setattr(extraction.lane, "salvage", slowly)
    async with serve_fake(place / "spool", SAMPLES) as server:
        outcome = await run_here(place / "s.zarr", server.url, place / "spool", data)

    assert outcome.code == 0, outcome.message
    assert went_on == [True]
