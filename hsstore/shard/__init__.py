"""Zarr v3 shards (`sharding_indexed`, index at the end): written in one pass, read by range."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def shard_path(root: Path, shard: int) -> Path:
    """Return the file of a shard of `hidden_states` in the store at `root`."""
    return root / "hidden_states" / f"c.{shard}.0.0"
