"""The command: what it says, its exit codes, its document; and the result as zarr-python reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import numpy as np
import zarr
from typer.testing import CliRunner

from hsstore.cli.app import app
from hsstore.report import DOCUMENTS
from hsstore.store import Store
from tests.consolidate.parts import Named, check_holds, look, make_part
from tests.consolidate.test_damage import flip

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

SAMPLES = [Named(f"s{number}", length=8) for number in range(12)]
OTHERS = [Named(f"t{number}", split="test") for number in range(5)]


def run(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    import hsstore.cli  # noqa: F401, PLC0415  # registers the commands

    return CliRunner().invoke(app, ["consolidate", *map(str, arguments)])


def document(result: Result) -> dict[str, object]:
    """Return what --json printed, after a look at its schema."""
    report: dict[str, object] = json.loads(result.stdout)
    schema = DOCUMENTS["consolidate"].model_json_schema(mode="serialization")
    jsonschema.validate(report, schema)  # type: ignore[no-untyped-call]
    return report


def test_it_ends_with_a_line_that_says_what_changed(directory: Path) -> None:
    a = make_part(directory / "a.zarr", SAMPLES, pending={"s3"}).path
    b = make_part(directory / "b.zarr", [*OTHERS, SAMPLES[0]]).path
    files = [sum(path.is_file() for path in store.rglob("*")) for store in (a, b)]

    result = run(a, b, directory / "out.zarr")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[:3] == [
        f"{a}: 11 of 12 samples complete, 11 taken",
        f"{b}: 6 of 6 samples complete, 5 taken",
        "1 duplicates left out",
    ]
    written = [
        path.stat().st_size for path in (directory / "out.zarr").rglob("*") if path.is_file()
    ]
    assert lines[-1].startswith(f"ok: 2 stores, {sum(files)} files, 0.000 GB -> 1 store, ")
    assert f"{len(written)} files, {sum(written) / 1e9:.3f} GB, ratio " in lines[-1]
    assert lines[-1].endswith("16 of 16 samples complete, 0 of 1 shards linked")


def test_a_dry_run_foresees_everything_and_writes_nothing(directory: Path) -> None:
    store = make_part(directory / "a.zarr", SAMPLES)
    before = look(directory)

    result = run(store.path, directory / "out.zarr", "--dry-run")
    foreseen = document(run(store.path, directory / "out.zarr", "--dry-run", "--json"))

    assert result.exit_code == 0
    assert "would write 12 samples into 6 shards, 6 of them unchanged: about" in result.stdout
    assert look(directory) == before
    assert (foreseen["ok"], foreseen["dry_run"], foreseen["pending"]) == (True, True, 12)

    # What is foreseen to be written is about what is written.
    copied = document(
        run(store.path, directory / "out.zarr", "--dry-run", "--json", "--link", "never")
    )
    shards = sum(path.stat().st_size for path in store.path.glob("hidden_states/c.*"))
    needed = copied["bytes_needed"]
    assert isinstance(needed, int)
    assert shards <= needed < shards + 12 * 200

    run(store.path, directory / "out.zarr")
    before = look(directory)
    again = run(store.path, directory / "out.zarr", "--dry-run")

    assert (
        "would write 0 samples into 6 shards, 0 of them unchanged: about 0.000 GB" in again.stdout
    )
    assert look(directory) == before


def test_damage_is_named_and_ends_with_1(directory: Path) -> None:
    store = make_part(directory / "a.zarr", SAMPLES)
    flip(store, 5)

    result = run(store.path, directory / "out.zarr")
    report = document(run(store.path, directory / "out.zarr", "--json"))

    assert result.exit_code == 1
    assert f"pending: sample 5 (s5) of {store.path}: " in result.stdout
    assert "not ok: 1 store, " in result.stdout
    assert (report["resumed"], report["complete"], report["pending"]) == (True, 11, 1)


def test_wrong_usage_ends_with_2_and_what_is_refused_with_3(directory: Path) -> None:
    a = make_part(directory / "a.zarr", SAMPLES).path
    b = make_part(directory / "b.zarr", [Named("s1", length=8, version=1)]).path

    assert run(a).exit_code == 2
    assert "name at least one source, and then the destination" in run(a).stderr
    assert run(a, directory / "out.zarr", "--where", "split").exit_code == 2
    for size in ("--chunk-rows", "--shard-rows", "--span-samples"):
        assert run(a, directory / "out.zarr", size, "0").exit_code == 2
    assert run(directory / "none.zarr", directory / "out.zarr").exit_code == 2
    assert run(a, b, directory / "out.zarr").exit_code == 3
    assert run(a, b).exit_code == 3
    assert not (directory / "out.zarr").exists()


def test_samples_are_taken_by_split_and_by_list(directory: Path) -> None:
    a = make_part(directory / "a.zarr", [*SAMPLES, *OTHERS]).path
    ids = directory / "ids.txt"
    ids.write_text("t3\ns1\n")

    run(a, directory / "test.zarr", "--where", "split=test")
    run(a, directory / "both.zarr", "--where", "split=test", "--where", "split=train")
    run(a, directory / "ids.zarr", "--where", f"ids={ids}")
    run(a, directory / "and.zarr", "--where", f"ids={ids}", "--where", "split=test")

    check_holds(Store.open(directory / "test.zarr"), OTHERS)
    check_holds(Store.open(directory / "both.zarr"), [*SAMPLES, *OTHERS])
    check_holds(Store.open(directory / "ids.zarr"), [SAMPLES[1], OTHERS[3]])
    check_holds(Store.open(directory / "and.zarr"), [OTHERS[3]])


def test_zarr_python_reads_the_result(directory: Path) -> None:
    a = make_part(directory / "a.zarr", SAMPLES).path
    b = make_part(directory / "b.zarr", OTHERS).path
    options = ("--codec", "lz4", "--order", "length", "--shard-rows", "16")
    assert run(a, b, directory / "out.zarr", *options).exit_code == 0

    group = zarr.open_group(directory / "out.zarr", mode="r")

    samples = sorted([*SAMPLES, *OTHERS], key=lambda one: one.length)
    assert np.asarray(group["complete"]).all()
    starts, tokens = np.asarray(group["row_start"]), np.asarray(group["input_ids"])
    states = np.asarray(group["hidden_states"]).view(np.uint16)
    for start, one in zip(starts.tolist(), samples, strict=True):
        here = slice(start, start + one.length)
        assert np.array_equal(states[here], one.states())
        assert np.array_equal(tokens[here], one.tokens())
