"""An export that is stopped anywhere goes on with the same command; no other one may."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hsstore.errors import InputError, OutputError, RefusedError
from hsstore.export import Options, export_store
from hsstore.report import ExportRecord
from hsstore.tasks import Where
from hsstore.testing.finite import commit_states
from tests.export.given import LENGTHS, document, make_filled, run, states_of, stop_after

if TYPE_CHECKING:
    from hsstore.export.export import Trainer
    from hsstore.store import Store
    from tests.export.given import Library

DYING = Path(__file__).parents[1] / "consolidate/dying.py"
TRAINERS: tuple[Trainer, ...] = ("specforge", "speculators", "modelopt", "torchspec", "eagle")


@pytest.fixture
def store(library: Library) -> Store:
    return library.store()


def tree(directory: Path) -> dict[str, bytes]:
    """Return every file, but for what says when it was made."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "hsstore-export.json"
    }


def record(directory: Path) -> ExportRecord:
    return ExportRecord.model_validate_json((directory / "hsstore-export.json").read_bytes())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_interrupted_export_goes_on_and_ends_as_if_nothing_had_been(
    trainer: Trainer, store: Store, directory: Path
) -> None:
    whole, parts = directory / "whole", directory / "parts"
    export_store(store.path, whole, Options(trainer))

    one_thread = Options(trainer, where=Where(workers=1))  # which is two blocks ahead at most
    with pytest.raises(KeyboardInterrupt):
        export_store(store.path, parts, one_thread, bars=stop_after(4))
    some = tree(parts)
    report = export_store(store.path, parts, Options(trainer))

    assert 4 <= len(some) < len(LENGTHS)
    assert not any("manifest" in name or "state.json" in name for name in some)
    assert (report.resumed, report.kept, report.written) == (
        True,
        len(some),
        len(LENGTHS) - len(some),
    )
    assert tree(parts) == tree(whole)
    assert record(parts).norm_error == record(whole).norm_error


def test_an_export_that_was_killed_leaves_no_half_file_under_a_name(
    store: Store, directory: Path
) -> None:
    out = directory / "out"
    command = [sys.executable, str(DYING), "9", "export", str(store.path), str(out)]
    died = subprocess.run([*command, "--format", "modelopt", "--workers", "1"], check=False)
    assert died.returncode == -signal.SIGKILL
    assert not record(out).finished
    half = [path for path in out.rglob("*") if path.name.endswith(".partial")]

    result = run("export", store.path, out, "--format", "modelopt", "--json")

    report = document(result, "export")
    assert len(half) == 1  # the file that was whole and had no name yet
    assert not half[0].exists()
    assert report["kept"] > 0
    assert report["kept"] + report["written"] == len(LENGTHS)
    export_store(store.path, directory / "whole", Options("modelopt"))
    assert tree(out) == tree(directory / "whole")


@pytest.mark.parametrize("trainer", ["specforge", "speculators"])
def test_a_file_that_was_cut_off_is_written_anew(
    trainer: Trainer, store: Store, directory: Path
) -> None:
    export_store(store.path, directory / "out", Options(trainer))
    before = tree(directory / "out")
    name = next(name for name in before if name.endswith((".ckpt", ".safetensors")))
    os.truncate(directory / "out" / name, len(before[name]) - 1)

    report = export_store(store.path, directory / "out", Options(trainer))

    assert (report.written, report.kept) == (1, len(LENGTHS) - 1)
    assert tree(directory / "out") == before


def test_a_finished_export_is_left_as_it_is_and_tells_the_same(
    store: Store, directory: Path
) -> None:
    first = export_store(store.path, directory / "out", Options("speculators"))
    before = tree(directory / "out")

    again = export_store(store.path, directory / "out", Options("speculators"))

    assert tree(directory / "out") == before
    assert (again.written, again.kept, again.bytes_needed) == (0, len(LENGTHS), 0)
    assert (again.norm_error, again.settings) == (first.norm_error, first.settings)


def test_names_that_a_killed_run_has_given_are_made_durable_by_the_next_one(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, synced, fsync = directory / "out", set(), os.fsync

    def remember(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    export_store(store.path, out, Options("modelopt"))
    (out / f"hsstore-export.json.{'0' * 32}.partial").write_text("{")
    monkeypatch.setattr(os, "fsync", remember)
    again = export_store(store.path, out, Options("modelopt"))

    assert again.kept == len(LENGTHS)
    assert str(out / "samples") in synced
    assert not list(out.rglob("*.partial"))


def test_what_is_completed_later_is_not_mixed_in_and_said(
    directory: Path, checkpoint: Path
) -> None:
    store = make_filled(directory / "s.zarr", pending={3, 12})
    options = Options("specforge", draft_vocabulary=20, model=checkpoint)
    first = export_store(store.path, directory / "out", options)
    before = tree(directory / "out")
    commit_states(store, {12: states_of(store, 12)})

    again = export_store(store.path, directory / "out", options)

    assert tree(directory / "out") == before
    assert (first.left_out_pending, again.left_out_pending) == (2, 1)
    assert "1 samples have been completed since this export was begun, and are not in it" in (
        again.notes
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"trainer": "torchspec"}, "trainer was 'specforge' and is 'torchspec' now"),
        ({"split": "train"}, "split was None and is 'train' now"),
        ({"ids": frozenset([b"chat/1/\xc3\xa4"])}, "ids was None and is '"),
    ],
)
def test_another_command_is_refused_in_a_directory_that_was_begun(
    changed: dict[str, Any], message: str, store: Store, directory: Path
) -> None:
    export_store(store.path, directory / "out", Options("specforge"))

    with pytest.raises(RefusedError, match=message):
        export_store(store.path, directory / "out", Options(**({"trainer": "specforge"} | changed)))
    other = make_filled(directory / "other.zarr")
    with pytest.raises(RefusedError, match="was made by another export: store was"):
        export_store(other.path, directory / "out", Options("specforge"))


def test_a_directory_with_anything_else_and_one_within_the_store_are_refused(
    store: Store, directory: Path
) -> None:
    (directory / "out").mkdir()
    (directory / "out/thesis.tex").write_text("")

    with pytest.raises(RefusedError, match=r"is not empty, and no export has made it.*thesis\.tex"):
        export_store(store.path, directory / "out", Options("specforge"))
    with pytest.raises(InputError, match="lies within the store"):
        export_store(store.path, store.path / "out", Options("specforge"))
    assert not (store.path / "out").exists()
    (directory / "out/thesis.tex").unlink()
    assert export_store(store.path, directory / "out", Options("specforge")).written == len(LENGTHS)


def test_a_record_that_cannot_be_read_is_named(store: Store, directory: Path) -> None:
    (directory / "out/hsstore-export.json").mkdir(parents=True)

    with pytest.raises(InputError, match=r"out/hsstore-export\.json: .*directory"):
        export_store(store.path, directory / "out", Options("eagle"))


def test_a_second_export_into_the_same_directory_is_refused(store: Store, directory: Path) -> None:
    (directory / "out").mkdir()
    descriptor = os.open(directory / "out", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(RefusedError, match="another export is writing to"):
            export_store(store.path, directory / "out", Options("specforge"))
    finally:
        os.close(descriptor)


def test_states_that_were_taken_back_or_made_anew_are_not_mixed_with_old_ones(
    directory: Path,
) -> None:
    store = make_filled(directory / "s.zarr")
    with pytest.raises(KeyboardInterrupt):
        export_store(store.path, directory / "out", Options("specforge"), bars=stop_after(4))

    store.withdraw(np.array([8]))
    with pytest.raises(RefusedError, match=r"begun with sample 8 \(chat/8/ä\), which is not in"):
        export_store(store.path, directory / "out", Options("specforge"))
    block = store.layout.block(store.layout.block_of(8)).samples
    commit_states(
        store, {sample: states_of(store, 0)[:1].repeat(store.length[sample], 0) for sample in block}
    )
    with pytest.raises(RefusedError, match="has other states for some samples than when"):
        export_store(store.path, directory / "out", Options("specforge"))


def test_a_disk_that_is_too_small_is_refused_before_the_first_file(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(directory)
    small = os.statvfs_result([*real[:4], 1, *real[5:]])
    monkeypatch.setattr(os, "statvfs", lambda _: small)

    with pytest.raises(RefusedError, match=r"needs about 0\.00 GB more, and 0\.00 GB are"):
        export_store(store.path, directory / "out", Options("specforge"))
    assert list((directory / "out").iterdir()) == []


def test_a_directory_that_cannot_be_written_is_an_output_error(
    store: Store, directory: Path
) -> None:
    (directory / "file").write_text("")

    with pytest.raises(OutputError, match="cannot write"):
        export_store(store.path, directory / "file/out", Options("specforge"))


def test_the_command_tells_what_was_written_left_out_and_what_to_say(directory: Path) -> None:
    store = make_filled(directory / "s.zarr", pending={3})

    result = run("export", store.path, directory / "out", "--format", "speculators")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].startswith(
        f"{directory / 'out'}: 12 samples for speculators; 12 written (0.000 GB"
    )
    assert lines[1] == "left out: 1 pending, 0 failed samples"
    assert lines[-4:] == [
        "tell speculators:",
        f"  --data-path {directory / 'out'}",
        "  --target-layer-ids 1 3 4",
        "  --on-missing raise",
    ]
    assert run("export", store.path, directory / "out", "--format", "eagle").exit_code == 3
    assert run("export", directory / "no", directory / "x", "--format", "eagle").exit_code == 2
    assert run("export", store.path, directory / "x", "--format", "seed").exit_code == 2
