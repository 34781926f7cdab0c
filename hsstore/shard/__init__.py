"""Zarr v3 shards (`sharding_indexed`, index at the end): written in one pass, read by range."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from hsstore.location import Location, RemotePath
    from hsstore.shard.reader import ShardReader
    from hsstore.shard.remote import RemoteShard
    from hsstore.shard.upload import ShardUpload
    from hsstore.shard.writer import ShardWriter

L = TypeVar("L", "Path", "RemotePath", "Location")


def shard_path(root: L, shard: int) -> L:
    """Return the file or object of a shard of `hidden_states` in the store at `root`."""
    return root / "hidden_states" / f"c.{shard}.0.0"


def open_shard(path: Location, chunks: int) -> ShardReader | RemoteShard:
    """Open a shard, wherever it is; raises what its reader does."""
    if isinstance(path, Path):
        from hsstore.shard.reader import ShardReader  # noqa: PLC0415  # each imports this package

        return ShardReader(path, chunks)
    from hsstore.shard.remote import RemoteShard  # noqa: PLC0415  # brings fsspec

    return RemoteShard(path, chunks)


def new_shard(
    path: Location, run: str, chunks: int, *, stage: Path | None = None, replaces: str | None = None
) -> ShardWriter | ShardUpload:
    """Begin a shard, wherever it is to be; raises what its writer does.

    Parameters
    ----------
    stage : Path, optional
        See `hsstore.shard.upload`.
    replaces : str, optional
        The version of the object that it is to replace; the one that is there now, if it is left out.
    """
    if isinstance(path, Path):
        from hsstore.shard.writer import ShardWriter  # noqa: PLC0415

        return ShardWriter(path, run, chunks)
    from hsstore.objects.write import version_of  # noqa: PLC0415
    from hsstore.shard.upload import ShardUpload  # noqa: PLC0415

    known = version_of(str(path)) if replaces is None else replaces
    return ShardUpload(path, chunks, stage, replaces=known)
