"""Look at the files of a store: what does not belong there, what dead runs left, who writes now."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from hsstore.claims import Claim, is_dead_here, owners_of
from hsstore.errors import UnreachableError
from hsstore.location import RemotePath
from hsstore.report import BadKind, Note, NoteKind
from hsstore.spec import COMPLETION
from hsstore.verify.finding import Finding
from hsstore.verify.names import Contents, is_chunk, look_at_objects, read_grid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.location import Location
    from hsstore.store import Store

SHOWN = 3


def check_contents(store: Store, own_run: str = "") -> tuple[list[Finding], list[Note]]:
    """Find files that belong to no store, and remark on those that runs left or are writing.

    Parameters
    ----------
    own_run : str
        Whose claims are our own.
    """
    contents = Contents()
    findings = []
    try:
        if isinstance(store.location, RemotePath):
            look_at_objects(store, store.location, contents)
        else:
            _look_into_root(store, contents)
    except (OSError, UnreachableError) as error:
        findings.append(Finding(None, BadKind.UNREADABLE, str(error)))
    findings += [
        Finding(None, BadKind.UNEXPECTED_FILE, f"{_relative(store, path)} is no part of a store")
        for path in contents.unexpected
    ]
    return findings, list(_notes(store, contents.partial, own_run))


def _look_into_root(store: Store, contents: Contents) -> None:
    arrays = {name for name in store.spec.seal.arrays if (store.path / name).is_dir()}
    for entry in _entries(store.path):
        if entry.name in arrays:
            _look_into_array(store.path / entry.name, contents)
        elif entry.name == "runs":
            _look_into_runs(store.path / "runs", contents)
        elif entry.name != "zarr.json":
            contents.sort_in(store.path / entry.name)


def _look_into_runs(runs: Path, contents: Contents) -> None:
    for entry in _entries(runs):
        if not entry.is_dir():
            if entry.name != "zarr.json":
                contents.sort_in(runs / entry.name)
            continue
        for inside in _entries(runs / entry.name):
            path = runs / entry.name / inside.name
            if (path / "zarr.json").is_file():  # its golden states, or what else a run keeps
                _look_into_array(path, contents)
            elif inside.name != "zarr.json":
                contents.sort_in(path)


def _look_into_array(array: Path, contents: Contents) -> None:
    grid = read_grid(array)
    for entry in _entries(array):
        if entry.name != "zarr.json" and not is_chunk(entry.name, grid):
            contents.sort_in(array / entry.name)


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        yield from entries


# --- runs -------------------------------------------------------------------------------------


def _notes(store: Store, partial: list[Location], own_run: str) -> Iterator[Note]:
    claims = {run: claim for run, claim in owners_of(store).items() if run != own_run}
    me = Claim.of_this_process("verify")
    dead = {run for run, (claim, _) in claims.items() if is_dead_here(store, claim, me)}
    for run, (claim, spans) in claims.items():
        who = f"run {run} (pid {claim.pid} on {claim.host}, since {claim.since})"
        if run in dead:
            detail = (
                f"{spans} spans are claimed by {who}, which is dead: the next extract takes over"
            )
            yield Note(kind=NoteKind.CLAIM, detail=detail)
        else:
            state = "is writing" if claim.shares_locks_with(me) else "writes, if it is still alive,"
            detail = f"{who} {state} {spans} spans of this store"
            yield Note(kind=NoteKind.WRITER, detail=detail)
    if partial and dead == claims.keys():
        yield Note(kind=NoteKind.LEFTOVER, detail=_describe_leftovers(store, partial))


def _describe_leftovers(store: Store, partial: list[Location]) -> str:
    names = sorted(_relative(store, path) for path in partial)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    size = sum(_size_bytes(path) for path in partial)
    is_remote = isinstance(
        store.location, RemotePath
    )  # nothing that is written there has such a name
    end = "they can be deleted" if is_remote else "the next extract that writes there removes them"
    return (
        f"{len(names)} files of {size / 1e9:.2f} GB that a dead run did not publish: "
        f"{', '.join(names[:SHOWN])}{more}; {end}"
    )


def _size_bytes(path: Location) -> int:
    try:
        return path.get(-1).size_bytes if isinstance(path, RemotePath) else path.stat().st_size
    except OSError:  # removed just now
        return 0


def _relative(store: Store, path: Location) -> str:
    return str(path).removeprefix(f"{store.location}/")


# --- what the arrays say of themselves --------------------------------------------------------


def check_arrays(store: Store) -> Iterator[Finding]:
    """Compare the shapes that the arrays declare with those that follow from the attributes.

    The seal proves only that a zarr.json is the one that was sealed.
    """
    for name, expected in _shapes(store).items():
        try:
            shape = json.loads((store.location / name / "zarr.json").read_bytes())["shape"]
        except (OSError, ValueError, TypeError, KeyError):  # reported with the seal
            continue
        if tuple(shape[: len(expected)]) != expected:
            detail = f"{name}/zarr.json has shape {shape}, the attributes give {[*expected]}"
            yield Finding(None, BadKind.METADATA, detail)


def _shapes(store: Store) -> dict[str, tuple[int, ...]]:
    samples, rows, model = len(store), store.layout.rows, store.spec.model
    of_samples = ("row_start", "length", "sample_id", "split", "metadata_end", *COMPLETION)
    return {
        **dict.fromkeys(of_samples, (samples,)),
        **dict.fromkeys(("input_ids", "loss_mask"), (rows,)),
        "hidden_states": (rows, model.slots, model.hidden),
        "golden": (len(store.spec.golden_input_ids), model.slots, model.hidden),
        "norm_weight": (model.hidden,),
    }
