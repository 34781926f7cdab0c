"""Where a run's store is, or its bytes on their way there: a directory, or a stage before an object store."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hsstore.files import stage_parent
from hsstore.stage import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from extraction.options import ExtractOptions
    from hsstore.location import Location


def is_there(store: Location) -> bool:
    """Say whether there is anything of this name; under a URL, a store.

    Raises
    ------
    UnreachableError, InputError
    """
    if isinstance(store, Path):
        return store.exists()
    from hsstore.birth import is_born  # noqa: PLC0415  # brings fsspec

    return is_born(store)


@asynccontextmanager
async def open_stage(options: ExtractOptions, run: str) -> AsyncIterator[Path | None]:
    """Give the stage of a run; None where its store is a directory.

    Raises
    ------
    OutputError
    """
    if isinstance(options.store, Path) or options.dry_run:
        yield None
        return
    stage = await asyncio.to_thread(Stage, options.stage, run)
    try:
        yield stage.path
    finally:
        await asyncio.to_thread(stage.close)


def places(options: ExtractOptions) -> dict[str, str]:
    """Return what the status page says of them."""
    store, stage = options.store, options.stage
    local = isinstance(store, Path)
    return {
        "store_real": str(store.resolve()),
        "stage": "" if local else os.path.abspath(where_bytes_go(store, stage)),  # noqa: PTH100
    }


def where_bytes_go(store: Location, stage: Path | None) -> Path:
    """Return where this machine needs room."""
    return store if isinstance(store, Path) else stage_parent(stage)


def staged_shard_bytes(store: Location) -> int | None:
    """Return how much of an open shard is in the stage at most; None where there is no stage."""
    if isinstance(store, Path):
        return None
    from hsstore.objects.write import PART_BYTES  # noqa: PLC0415  # brings fsspec

    return PART_BYTES
