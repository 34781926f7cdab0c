"""Runs of an import: what the store keeps of them, and what becomes of files that another run was faster with."""

from __future__ import annotations

import gzip
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hsstore.errors import OutputError
from hsstore.importing import import_files, open_source
from hsstore.report import LeftKind
from hsstore.store import Store
from hsstore.testing.finite import commit_states
from tests.export.given import (
    LAYERS_GIVEN,
    LENGTHS,
    SMALL_GIVEN,
    document,
    make_empty,
    run,
    states_of,
    without_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hsstore.tasks import Bars, Progress
    from tests.export.given import Library

OPTIONS: dict[str, Any] = {"created": False, "apply_norm": False, "workers": 1}


def calling(what: str, act: Callable[[], None]) -> Bars:
    """Make bars that do something once, when the first of these have been counted."""
    to_do = {what: act}

    @contextmanager
    def bars(counted: str) -> Iterator[Progress]:
        def progress(_done: int, _total: int) -> None:
            to_do.pop(counted, lambda: None)()

        yield progress

    return bars


def test_a_bug_is_recorded_as_one(library: Library, directory: Path) -> None:
    source = open_source(library.copy("specforge", directory / "out"), "specforge", None, None)
    empty = make_empty(directory / "b.zarr")

    def break_down() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        import_files(source, empty, **OPTIONS, bars=calling("samples", break_down))

    assert [record.result for record in empty.runs()] == ["broken by a bug"]


def test_the_error_of_a_commit_is_told_although_the_record_of_the_run_fails_too(
    library: Library, directory: Path
) -> None:
    source = open_source(library.copy("specforge", directory / "out"), "specforge", None, None)
    empty = make_empty(directory / "b.zarr")

    def fail() -> None:
        shutil.rmtree(empty.path / "runs")
        (empty.path / "runs").write_text("")
        raise OutputError("the disk is full")

    with pytest.raises(OutputError, match=r"^the disk is full$"):
        import_files(source, empty, **OPTIONS, bars=calling("samples", fail))


def test_samples_that_another_run_has_completed_meanwhile_are_left_to_it(
    library: Library, directory: Path
) -> None:
    store = library.store()
    source = open_source(library.copy("specforge", directory / "out"), "specforge", None, None)
    empty = make_empty(directory / "b.zarr")
    theirs = {sample: states_of(store, sample) for sample in (0, 3)}

    report = import_files(
        source, empty, **OPTIONS, bars=calling("files", lambda: commit_states(empty, theirs))
    )

    assert [(one.sample, one.kind) for one in report.left] == [
        (0, LeftKind.COMPLETE),
        (3, LeftKind.COMPLETE),
    ]
    assert len(report.taken) == len(LENGTHS) - 2
    assert empty.completion().digest.tolist() == store.completion().digest.tolist()


def test_a_bad_file_does_not_count_where_another_one_had_its_sample(
    library: Library, directory: Path
) -> None:
    files = library.copy("specforge", directory / "out")
    path = sorted(files.rglob("*.ckpt"))
    content = torch.load(path[3])
    torch.save(content | {"hidden_state": content["hidden_state"] * float("nan")}, files / "a.ckpt")
    empty = make_empty(directory / "b.zarr")

    result = run("import", files, empty.path, "--format", "specforge", "--json")

    report = document(result, "import")
    assert [(one["file"], one["kind"]) for one in report["left"]] == [("a.ckpt", "values")]
    assert report["pending"] == 0
    assert result.exit_code == 0


def test_samples_are_named_after_their_files_without_the_suffix(
    library: Library, directory: Path, checkpoint: Path
) -> None:
    files = without_record(library.copy("specforge", directory / "out"))
    path = sorted(files.rglob("*.ckpt"))
    for number in (1, 2, 3):
        path[number].rename(files / f"a.{number}.ckpt")
    (files / "a.3.ckpt.gz").write_bytes(gzip.compress(path[4].read_bytes()))
    shutil.rmtree(path[0].parent)

    command = ("import", files, directory / "b.zarr", "--format", "specforge")
    result = run(*command, "--layers", LAYERS_GIVEN, "--model", checkpoint, *SMALL_GIVEN)

    assert result.exit_code == 0, result.output
    new = Store.open(directory / "b.zarr")
    assert new.completion().complete.all()
    assert [new.sample_id(sample) for sample in range(len(new))] == [
        "a.1",
        "a.2",
        "a.3",
        "a.3@a.3.ckpt.gz",
    ]


def test_states_before_the_norm_wait_for_no_server_and_are_said_to_be_made_up_where_they_are(
    library: Library, directory: Path
) -> None:
    outputs = {}
    for final in ("pre-norm", "post-norm"):  # of the store that was exported
        files = library.copy("speculators", directory / final, final)
        next(files.rglob("hs_0.safetensors")).unlink()
        empty = make_empty(directory / f"{final}.zarr", "pre-norm")
        outputs[final] = run("import", files, empty.path, "--format", "speculators").stdout

    made_up = "note: the final states are not the model's: the export has made them up"
    for final, output in outputs.items():
        assert output.endswith("\n12 of 13 samples complete; 1 pending\n")
        assert (made_up in output) == (final == "post-norm")
