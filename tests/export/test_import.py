"""Files into a store: the same bits, found by tokens; what cannot be used is named."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from extraction.engines.capture_hash import capture_hash
from hsstore.export import Options, export_store
from hsstore.importing import import_files, open_source
from hsstore.report import ExportRecord
from hsstore.spec import FailureReason
from hsstore.store import Store
from hsstore.verify import verify_store
from tests.export.given import (
    LAYERS,
    LAYERS_GIVEN,
    LENGTHS,
    SMALL_GIVEN,
    document,
    make_empty,
    make_filled,
    run,
    stop_after,
    without_record,
)
from tests.formats.test_files import Bomb

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.export.export import Trainer
    from tests.export.given import Library


def digests(store: Store) -> list[int]:
    found: list[int] = store.completion().digest.tolist()
    return found


def taken(report: dict[str, Any]) -> dict[int, str]:
    return {one["sample"]: one["file"] for one in report["taken"]}


def left(report: dict[str, Any]) -> dict[str, str]:
    return {one["file"]: one["kind"] for one in report["left"]}


@pytest.mark.parametrize(
    ("trainer", "final"),
    [
        ("specforge", "post-norm"),
        ("speculators", "pre-norm"),
        ("modelopt", "post-norm"),
        ("modelopt", "pre-norm"),
        ("torchspec", "post-norm"),
        ("torchspec", "pre-norm"),
    ],
)
def test_a_store_that_was_exported_comes_back_bit_for_bit(
    trainer: Trainer, final: Any, library: Library, directory: Path
) -> None:
    store = library.store(final)
    files = library.copy(trainer, directory / "out", final)
    empty = make_empty(directory / "b.zarr", final)

    result = run("import", files, empty.path, "--format", trainer, "--json")

    report = document(result, "import")
    assert result.exit_code == 0
    assert (report["complete"], report["pending"], report["left"]) == (len(LENGTHS), 0, [])
    assert digests(empty) == digests(store)
    assert verify_store(empty.path).ok
    # Once more there is nothing to do, and nothing is wrong.
    again = document(run("import", files, empty.path, "--format", trainer, "--json"), "import")
    assert (again["taken"], set(left(again).values())) == ([], {"complete"})


@pytest.mark.parametrize("trainer", ["specforge", "speculators", "modelopt", "torchspec"])
def test_a_new_store_is_planned_from_the_files_alone(
    trainer: Trainer, library: Library, directory: Path, checkpoint: Path
) -> None:
    final: Any = "pre-norm" if trainer == "speculators" else "post-norm"
    store = library.store(final)
    files = without_record(library.copy(trainer, directory / "out", final))

    command = ("import", files, directory / "b.zarr", "--format", trainer, "--final", final)
    result = run(*command, "--layers", LAYERS_GIVEN, "--model", checkpoint, *SMALL_GIVEN)

    assert result.exit_code == 0, result.output
    assert f"{len(LENGTHS)} of {len(LENGTHS)} samples complete" in result.stdout
    new = Store.open(directory / "b.zarr")
    tokens = {new.input_ids(sample).tobytes(): sample for sample in range(len(new))}
    for sample in range(len(store)):
        there = tokens[store.input_ids(sample).tobytes()]
        assert new.completion().digest[there] == store.completion().digest[sample]
        np.testing.assert_array_equal(new.loss_mask(there), store.loss_mask(sample))
        if trainer != "specforge":  # whose files do not say
            assert new.sample_id(there) == store.sample_id(sample)
    assert new.spec.model.layers == LAYERS
    assert [record.engine for record in new.runs()] == ["import"]


def test_a_new_store_from_an_export_is_for_the_server_that_made_the_states(
    library: Library, directory: Path, checkpoint: Path
) -> None:
    files = library.copy("specforge", directory / "out")
    command = ("import", files, directory / "b.zarr", "--format", "specforge")
    assert run(*command, "--model", checkpoint).exit_code == 0
    without_record(files)
    by_model = ("import", files, directory / "c.zarr", "--format", "specforge")
    said = ("--layers", LAYERS_GIVEN, "--model", checkpoint, "--compute-dtype", "float32")
    assert run(*by_model, *said).exit_code == 0

    ours, theirs = Store.open(directory / "b.zarr"), Store.open(directory / "c.zarr")
    assert ours.spec.model == library.store().spec.model
    assert theirs.spec.model.capture_hash == capture_hash(
        checkpoint,
        layers=LAYERS,
        final="post-norm",
        dtype="bfloat16",
        compute_dtype="float32",
    )


def test_a_state_from_before_the_norm_comes_back_nearly_and_only_when_asked(
    library: Library,
    directory: Path,
) -> None:
    store = library.store()
    files = library.copy("speculators", directory / "out")
    record = ExportRecord.model_validate_json((files / "hsstore-export.json").read_bytes())
    error = record.norm_error
    empty = make_empty(directory / "b.zarr")

    refused = run("import", files, empty.path, "--format", "speculators")
    result = run("import", files, empty.path, "--format", "speculators", "--apply-norm", "--json")

    assert refused.exit_code == 3
    assert "--apply-norm converts" in refused.output
    assert document(result, "import")["norm_applied"] is True
    assert error is not None
    for sample in range(len(store)):
        mine, theirs = (one.states(sample).astype(np.float64) for one in (store, empty))
        np.testing.assert_array_equal(mine[:, :-1], theirs[:, :-1])
        difference = np.linalg.norm(mine[:, -1] - theirs[:, -1], axis=1)
        assert (difference <= (error * 1.001) * np.linalg.norm(mine[:, -1], axis=1)).all()


def test_a_half_finished_directory_is_taken_as_far_as_it_goes(
    library: Library, directory: Path
) -> None:
    store = library.store()
    out = without_record(library.copy("modelopt", directory / "out")) / "samples"
    names = [f"samples/{row:09d}.pt" for row in range(len(LENGTHS))]
    path = [directory / "out" / name for name in names]
    bomb = Bomb(directory / "ran")
    os.truncate(path[0], path[0].stat().st_size // 2)
    path[1].unlink()
    torch.save({"input_ids": torch.ones(3), "x": bomb}, path[2])
    shutil.copy(path[3], out / "000000900.pt")  # a rerun that numbered its files anew
    _change(path[4], out / "000000901.pt", "hidden_states", lambda states: states * 2)
    _change(path[5], path[5], "hidden_states", lambda states: states * float("nan"))
    _change(path[6], path[6], "aux_hidden_states", lambda states: states[:, :-1])
    _change(path[7], path[7], "hidden_states", lambda states: states.float())
    _change(path[7], path[7], "aux_hidden_states", lambda states: states.float())
    _change(path[8], path[8], "input_ids", lambda ids: ids + 1)
    _change(path[10], path[10], "loss_mask", lambda mask: 1 - mask)
    _change(path[11], path[11], "hidden_states_prenorm", lambda _: True)
    (out / "000000950.pt").write_text("notes")
    torch.save({"x": torch.ones(1)}, out / "000000960.pt")
    torch.save(torch.ones(5, dtype=torch.int64), out / "d2t.pt")
    empty = make_empty(directory / "b.zarr")

    command = ("import", directory / "out", empty.path, "--format", "modelopt")
    said = ("--layers", LAYERS_GIVEN, "--final", "post-norm")
    result = run(*command, *said, "--json")

    report = document(result, "import")
    assert result.exit_code == 1
    assert not bomb.path.exists()
    assert taken(report) == {sample: names[sample] for sample in (3, 4, 9, 10, 12)}
    assert left(report) == {
        names[0]: "truncated",
        names[2]: "unsafe",
        "samples/000000900.pt": "duplicate",
        "samples/000000901.pt": "conflict",
        names[5]: "values",
        names[6]: "shape",
        names[7]: "dtype",
        names[8]: "unknown-tokens",
        names[11]: "final",
        "samples/000000950.pt": "foreign",
        "samples/000000960.pt": "foreign",
    }
    assert report["masks_differ"] == 1
    assert report["pending_samples"] == [[0, 3], [5, 9], [11, 12]]
    assert report["pending"] == 8
    complete = empty.completion()
    assert complete.digest[complete.complete].tolist() == [
        digests(store)[sample] for sample in (3, 4, 9, 10, 12)
    ]
    assert verify_store(empty.path).ok
    # When the rest has come, the same command takes it.
    shutil.rmtree(directory / "out")
    library.copy("modelopt", directory / "out")
    assert run(*command, *said).exit_code == 0
    assert digests(empty) == digests(store)


def _change(source: Path, target: Path, name: str, change: Any) -> None:
    content = torch.load(source, weights_only=True)
    content[name] = change(content[name])
    torch.save(content, target)


def test_people_are_told_file_by_file(library: Library, directory: Path) -> None:
    files = library.copy("specforge", directory / "out")
    path = sorted(files.rglob("*.ckpt"))
    os.truncate(path[0], 100)
    shutil.copy(path[3], path[3].with_name("data_000000900.ckpt"))
    empty = make_empty(directory / "b.zarr")

    lines = run("import", files, empty.path, "--format", "specforge").stdout.splitlines()

    below = "rows_000000000-000002000"
    assert lines[0] == f"{files}: 14 specforge files; {empty.path}: 12 samples taken"
    assert lines[2].startswith(f"truncated: {below}/data_000000000.ckpt: cut off or damaged: ")
    assert lines[3] == (
        f"duplicate: {below}/data_000000900.ckpt (sample 3): the same as {below}/data_000000003.ckpt"
    )
    assert lines[4] == "files not taken: 1 truncated, 1 duplicate"
    assert lines[5] == "12 of 13 samples complete; 1 pending: hsstore extract does the rest"


def test_rows_behind_a_sample_that_a_batch_was_padded_with_are_cut_off(
    library: Library, directory: Path
) -> None:
    store = library.store()
    files = library.copy("specforge", directory / "out")
    path = sorted(files.rglob("*.ckpt"))
    for sample, pad in ((2, 0), (4, int(store.input_ids(4)[-1]))):  # also where it ends in the pad
        content = torch.load(path[sample])
        rows = {
            name: torch.cat([value, value], 1 if value.ndim == 3 else 0)
            for name, value in content.items()
        }
        rows["input_ids"][LENGTHS[sample] :] = pad
        torch.save(rows, path[sample])
    content = torch.load(path[6])
    torch.save(
        {name: torch.cat([one, one], one.ndim // 2) for name, one in content.items()}, path[6]
    )
    empty = make_empty(directory / "b.zarr")

    report = document(run("import", files, empty.path, "--format", "specforge", "--json"), "import")

    cut = {one["sample"]: one["rows_cut"] for one in report["taken"] if one["rows_cut"]}
    assert cut == {2: LENGTHS[2], 4: LENGTHS[4]}
    assert left(report) == {str(path[6].relative_to(files)): "unknown-tokens"}
    assert any("2 files went on behind their sample" in note for note in report["notes"])
    for sample in (2, 4):
        assert digests(empty)[sample] == digests(store)[sample]


def test_samples_with_the_same_tokens_share_a_file_or_each_take_their_own(
    directory: Path,
) -> None:
    from hsstore.create import create_store  # noqa: PLC0415
    from hsstore.dataset import TokenizedDataset, TokenizedSample  # noqa: PLC0415
    from hsstore.testing.finite import commit_states  # noqa: PLC0415
    from tests.export.given import SMALL, WEIGHT, make_model, states_of  # noqa: PLC0415

    ids, mask = np.arange(1, 5, dtype=np.int32), np.ones(4, np.uint8)
    twins = TokenizedDataset.from_samples(TokenizedSample(name, ids, mask) for name in ("b", "a"))
    stores = [
        create_store(directory / name, twins, make_model(), norm_weight=WEIGHT, options=SMALL)
        for name in ("one.zarr", "two.zarr", "three.zarr")
    ]
    commit_states(stores[0], {sample: states_of(stores[0], sample) for sample in (0, 1)})
    files = directory / "out"
    export_store(stores[0].path, files, Options("modelopt"))

    both = document(
        run("import", files, stores[1].path, "--format", "modelopt", "--json"), "import"
    )
    (files / "samples/000000001.pt").unlink()
    shared = document(
        run("import", files, stores[2].path, "--format", "modelopt", "--json"), "import"
    )

    assert digests(stores[1]) == digests(stores[0])
    assert both["left"] == []
    assert digests(stores[2]) == [digests(stores[0])[0]] * 2
    assert shared["left"] == []


def test_samples_that_are_complete_or_failed_are_left_as_they_are(
    library: Library, directory: Path
) -> None:
    files = library.copy("specforge", directory / "out")
    other = make_filled(directory / "b.zarr", pending={0, 1, 2}, failed={7: FailureReason.BAD_DATA})
    before = digests(other)

    result = run("import", files, other.path, "--format", "specforge", "--json")

    report = document(result, "import")
    assert result.exit_code == 1
    assert sorted(taken(report)) == [0, 1, 2]
    assert sorted(left(report).values()) == ["complete"] * 9 + ["failed"]
    assert digests(other)[3:] == before[3:]
    assert other.completion().failed[7] == FailureReason.BAD_DATA


def test_an_interrupted_import_goes_on_and_loses_no_block(
    library: Library, directory: Path
) -> None:
    store = library.store()
    files = library.copy("specforge", directory / "out")
    empty = make_empty(directory / "b.zarr")
    source = open_source(files, "specforge", None, None)
    options: dict[str, Any] = {"created": False, "apply_norm": False, "workers": 1}

    with pytest.raises(KeyboardInterrupt):
        import_files(source, empty, **options, bars=stop_after(4))
    done = empty.completion().complete
    report = import_files(source, empty, **options)

    assert 4 <= done.sum() < len(LENGTHS)
    assert len(report.taken) == len(LENGTHS) - done.sum()
    assert digests(empty) == digests(store)
    assert {record.result for record in empty.runs()} == {"interrupted", "finished"}
    assert list((directory / "b.zarr.runs/claims").iterdir()) == []
    assert not list(empty.path.rglob("*.partial"))


def test_what_vllm_names_by_request_is_found_all_the_same(
    library: Library, directory: Path
) -> None:
    store = library.store("pre-norm")
    out = without_record(library.copy("speculators", directory / "out", "pre-norm"))
    for row, path in enumerate(sorted(out.rglob("*.safetensors"))):
        assert load_file(path)["token_ids"].dtype == torch.int64
        path.rename(path.with_name(f"cmpl-{row * 7919 % 1000}.safetensors"))
    empty = make_empty(directory / "b.zarr", "pre-norm")

    result = run("import", out, empty.path, "--format", "speculators", "--layers", LAYERS_GIVEN)

    assert result.exit_code == 0, result.output
    assert digests(empty) == digests(store)
