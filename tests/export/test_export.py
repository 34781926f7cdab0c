"""What lies in an exported directory, read with torch and safetensors themselves."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from hsstore.errors import InputError, RefusedError
from hsstore.export import Options, export_store
from hsstore.export.settings import Told, notes
from hsstore.formats.norm import apply_norm
from hsstore.integrations.prepare import prepare
from hsstore.loaders.tensors import bits_of, read_states
from hsstore.loaders.vocabulary import draft_vocabulary
from hsstore.report import ExportRecord
from hsstore.spec import FailureReason
from tests.export.given import (
    HIDDEN,
    LENGTHS,
    NORM,
    VOCABULARY,
    WEIGHT,
    make_checkpoint,
    make_filled,
    make_model,
    make_plan,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.export.export import Trainer
    from hsstore.store import Store

LEFT_OUT = (5, 9)
"""Samples of the store below that are not complete."""
SAMPLES = [sample for sample in range(len(LENGTHS)) if sample not in LEFT_OUT]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        failed = {9: FailureReason.BAD_DATA}
        yield make_filled(Path(path) / "s.zarr", pending={5}, failed=failed)


def expected(store: Store, sample: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, layers side by side, and the final state of a sample."""
    states = read_states(store, sample, contiguous=True)
    ids = torch.from_numpy(store.input_ids(sample)).long()
    return ids, states[:, :-1].flatten(1), states[:, -1]


def mask_of(store: Store, sample: int) -> torch.Tensor:
    return torch.from_numpy(store.loss_mask(sample)).long()


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    for value in content.values():  # no view of something larger was saved
        if isinstance(value, torch.Tensor):
            assert value.untyped_storage().nbytes() == value.nbytes
    return content


def test_specforge_files_hold_what_it_means_by_their_names(store: Store, directory: Path) -> None:
    report = export_store(store.path, directory / "out", Options("specforge"))

    files = sorted((directory / "out").rglob("*.ckpt"), key=str)
    assert len(files) == len(SAMPLES) == report.written
    for path, sample in zip(files, SAMPLES, strict=True):  # in the order of their names
        ids, aux, last = expected(store, sample)
        content = load(path)
        assert set(content) == {"input_ids", "loss_mask", "hidden_state", "aux_hidden_state"}
        assert torch.equal(content["input_ids"], ids)
        assert torch.equal(content["loss_mask"], mask_of(store, sample))
        assert torch.equal(content["hidden_state"], last[None])
        assert torch.equal(content["aux_hidden_state"], aux[None])
        assert content["hidden_state"].dtype == torch.bfloat16
        assert content["input_ids"].dtype == torch.int64
    assert (report.left_out_pending, report.left_out_failed) == (1, 1)


def test_modelopt_and_torchspec_files_hold_what_they_mean(store: Store, directory: Path) -> None:
    export_store(store.path, directory / "m", Options("modelopt"))
    export_store(store.path, directory / "t", Options("torchspec"))

    rows = [json.loads(line) for line in (directory / "t/manifest.jsonl").read_text().splitlines()]
    about = json.loads((directory / "t/dataset.json").read_text())
    assert about == {"version": 1, "last_hidden_states_prenorm": False}
    assert len(rows) == len(SAMPLES)
    for row, sample in enumerate(SAMPLES):
        ids, aux, last = expected(store, sample)
        name = store.sample_id(sample)
        modelopt = load(directory / f"m/samples/{row:09d}.pt")
        file = f"samples/{hashlib.sha1(name.encode()).hexdigest()}.pt"
        torchspec = load(directory / "t" / file)
        assert rows[row] == {
            "split": store.split(sample),
            "data_id": name,
            "file": file,
            "seq_len": len(ids),
        }
        assert torch.equal(modelopt["hidden_states"], last)
        assert torch.equal(modelopt["aux_hidden_states"], aux)
        assert modelopt["hidden_states_prenorm"] is False
        assert torch.equal(modelopt["loss_mask"], mask_of(store, sample))
        assert modelopt["conversation_id"] == torchspec["data_id"] == name
        assert torch.equal(torchspec["hidden_states"], aux)
        assert torch.equal(torchspec["last_hidden_states"], last)
    # The trainer takes every .pt below a folder: nothing else lies among the samples.
    assert len(list((directory / "m/samples").iterdir())) == len(SAMPLES)


def test_speculators_get_a_state_from_before_the_norm_and_a_data_set_beside(
    store: Store, directory: Path
) -> None:
    out = directory / "out"
    report = export_store(store.path, out, Options("speculators"))

    table = pa.ipc.open_stream((out / "data-00000-of-00001.arrow").read_bytes()).read_all()
    counts: Counter[int] = Counter()
    error = 0.0
    for row, sample in enumerate(SAMPLES):
        ids, aux, last = expected(store, sample)
        content = load_file(out / f"hidden_states/hs_{row}.safetensors")
        assert torch.equal(content["token_ids"], ids)
        assert torch.equal(content["hidden_states"][:, :-1].flatten(1), aux)
        # What the trainer makes of it, in the dtype of the states, is what the store has, as far as is said.
        given = bits_of(content["hidden_states"][:, -1].contiguous()).view(ml_dtypes.bfloat16)
        again = apply_norm(given, NORM, WEIGHT).astype(np.float32)
        exact = last.float().numpy()
        error = max(
            error,
            float((np.linalg.norm(again - exact, axis=1) / np.linalg.norm(exact, axis=1)).max()),
        )
        assert table["input_ids"][row].as_py() == ids.tolist()
        assert table["loss_mask"][row].as_py() == mask_of(store, sample).tolist()
        assert table["seq_len"][row].as_py() == len(ids)
        counts.update(ids[mask_of(store, sample).bool()].tolist())
    assert report.norm_error == pytest.approx(error)
    assert 0 < error < 0.02
    assert json.loads((out / "state.json").read_text())["_format_type"] == "torch"
    assert torch.load(out / "token_freq.pt", weights_only=True) == dict(counts)
    assert any("normalised again it differs by" in note for note in report.notes)


def test_eagle_files_hold_the_final_state_alone(store: Store, directory: Path) -> None:
    report = export_store(store.path, directory / "out", Options("eagle"))

    for row, sample in enumerate(SAMPLES):
        ids, _, last = expected(store, sample)
        content = load(directory / f"out/0/data_{row}.ckpt")
        assert torch.equal(content["input_ids"], ids)
        assert torch.equal(content["hidden_state"], last.half())
    assert "the captured layers are left out, and the final state is rounded to float16" in (
        report.notes
    )


def test_a_directory_says_what_its_files_do_not(store: Store, directory: Path) -> None:
    export_store(store.path, directory / "out", Options("specforge"))

    record = ExportRecord.model_validate_json((directory / "out/hsstore-export.json").read_bytes())
    assert record.model == make_model()
    assert record.layer_inputs == (1, 3, 4)
    assert record.final == "post-norm"
    assert record.samples == ((0, 5), (6, 9), (10, 13))
    assert record.request.store == store.spec.store
    assert record.finished


def test_one_split_and_some_ids_are_taken(store: Store, directory: Path) -> None:
    ids = frozenset(f"chat/{n}/ä".encode() for n in (4, 5, 6))

    split = export_store(store.path, directory / "a", Options("specforge", split="test"))
    some = export_store(store.path, directory / "b", Options("modelopt", ids=ids))

    assert (split.samples, split.left_out_failed) == (1, 1)  # of 4 and 9
    assert (some.samples, some.left_out_pending) == (2, 1)
    assert any("samples of 2 splits" in note for note in some.notes)
    assert not any("splits" in note for note in split.notes)
    with pytest.raises(InputError, match=r"no split 'dev'; there are \['train', 'test'\]"):
        export_store(store.path, directory / "c", Options("specforge", split="dev"))
    with pytest.raises(InputError, match=r"no sample 'x' \(1 such ids\)"):
        export_store(store.path, directory / "c", Options("specforge", ids=ids | {b"x"}))
    only = frozenset([b"chat/5/\xc3\xa4"])
    with pytest.raises(InputError, match=r"no sample to export \(1 pending, 0 failed\)"):
        export_store(store.path, directory / "c", Options("specforge", ids=only))


@pytest.mark.parametrize(
    ("trainer", "read"),
    [
        ("specforge", lambda out: torch.load(out / "vocab_mapping/vocab_mapping.pt")),
        ("torchspec", lambda out: torch.load(out / "vocab_mapping.pt")),
        ("modelopt", lambda out: {"d2t": torch.load(out / "d2t.pt")}),
        (
            "speculators",
            lambda out: {n: torch.from_numpy(np.load(out / f"{n}-40.npy")) for n in ("d2t", "t2d")},
        ),
    ],
)
def test_a_draft_vocabulary_lies_where_the_trainer_looks_for_it(
    trainer: Trainer, read: Any, store: Store, directory: Path, checkpoint: Path
) -> None:
    options = Options(trainer, draft_vocabulary=40, model=checkpoint)
    export_store(store.path, directory / "out", options)

    maps = draft_vocabulary(store, 40, VOCABULARY)
    for name, found in read(directory / "out").items():
        assert torch.equal(found, getattr(maps, name))


def test_a_draft_vocabulary_needs_the_target_and_fits_into_it(
    store: Store, directory: Path, checkpoint: Path
) -> None:
    for options, message in (
        (Options("specforge", draft_vocabulary=4), "--draft-vocab needs --model DIR"),
        (Options("eagle", draft_vocabulary=4, model=checkpoint), "have no draft vocabulary"),
        (Options("specforge", draft_vocabulary=301, model=checkpoint), "the target has 300 tokens"),
        (Options("specforge", model=directory), "is not a checkpoint: it has no config.json"),
    ):
        with pytest.raises(InputError, match=message):
            export_store(store.path, directory / "out", options)
    assert not (directory / "out").exists()
    for size in (0, 301):  # also of what is prepared for training on the store itself
        with pytest.raises(InputError, match=f"--draft-vocab {size}: the target has 300 tokens"):
            prepare(
                store.path,
                directory / "out",
                "speculators",
                draft_vocabulary=size,
                model=checkpoint,
            )
    assert not (directory / "out").exists()


def test_a_target_that_cannot_be_the_samples_own_is_refused_before_the_first_one_is_written(
    store: Store, directory: Path, checkpoint: Path
) -> None:
    small = make_checkpoint(directory / "small")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    bare = directory / "bare"
    bare.mkdir()
    shutil.copy(checkpoint / "config.json", bare)

    with pytest.raises(InputError, match="no safetensors files"):
        export_store(store.path, directory / "a", Options("specforge", model=bare))
    for options in (
        Options("speculators", model=small),
        Options("modelopt", model=small, draft_vocabulary=4),
    ):
        with pytest.raises(
            InputError, match=r"it has tokens \d+ to \d+, but the target model has 100"
        ):
            export_store(store.path, directory / "b", options)

    assert not (directory / "a").exists()
    assert list((directory / "b").iterdir()) == []  # another command may use it
    assert export_store(store.path, directory / "b", Options("modelopt", model=small)).written


def test_a_target_without_an_index_gets_a_folder_with_one(
    store: Store, directory: Path, checkpoint: Path
) -> None:
    report = export_store(store.path, directory / "out", Options("specforge", model=checkpoint))

    target = directory / "out/target"
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert f"  target_model_path: {target}" in report.settings
    assert "  lm_head_key: model.embed_tokens.weight" in report.settings
    for name, file in index["weight_map"].items():
        assert name in load_file(target / file)
    assert (target / "config.json").read_bytes() == (checkpoint / "config.json").read_bytes()

    untied = make_checkpoint(directory / "untied", tied=False)
    index = {"weight_map": {"lm_head.weight": "model.safetensors"}}
    (untied / "model.safetensors.index.json").write_text(json.dumps(index))
    report = export_store(store.path, directory / "out2", Options("specforge", model=untied))
    assert f"  target_model_path: {untied}" in report.settings
    assert not (directory / "out2/target").exists()


@pytest.mark.parametrize(
    ("trainer", "line"),
    [
        ("specforge", "  aux_hidden_state_layer_ids: [0, 2, 3]"),
        ("speculators", "--target-layer-ids 1 3 4"),
        ("modelopt", "eagle_aux_hidden_state_layer_ids=[0, 2, 3]"),
        ("torchspec", "aux hidden state layers: [0, 2, 3] (outputs of 0-based layers)"),
    ],
)
def test_layers_are_told_as_the_trainer_counts_them(
    trainer: Trainer, line: str, store: Store, directory: Path
) -> None:
    assert line in export_store(store.path, directory / "out", Options(trainer)).settings


def test_a_store_of_states_before_the_norm_gives_both_kinds(directory: Path) -> None:
    store = make_filled(directory / "s.zarr", "pre-norm")
    for trainer, final in (("speculators", "pre-norm"), ("specforge", "post-norm")):
        report = export_store(store.path, directory / trainer, Options(trainer))  # type: ignore[arg-type]
        assert (report.final, report.norm_error) == (final, None)
    export_store(store.path, directory / "m", Options("modelopt"))
    export_store(store.path, directory / "t", Options("torchspec"))

    _, _, last = expected(store, 4)
    own = load_file(directory / "speculators/hidden_states/hs_4.safetensors")
    assert torch.equal(own["hidden_states"][:, -1], last)
    normed = load(directory / "specforge/rows_000000000-000002000/data_000000004.ckpt")
    model_order = apply_norm(store.states(4)[:, -1], NORM, WEIGHT)
    np.testing.assert_array_equal(
        bits_of(normed["hidden_state"][0]), np.ascontiguousarray(model_order).view(np.uint16)
    )
    assert load(directory / "m/samples/000000004.pt")["hidden_states_prenorm"] is True
    about = json.loads((directory / "t/dataset.json").read_text())
    assert about["last_hidden_states_prenorm"] is True


def test_final_states_that_were_made_up_are_said_to_be_also_where_the_norm_gives_them_back(
    directory: Path,
) -> None:
    told = Told(directory, "speculators", make_model(), "pre-norm", None, None, 1, None)

    assert ["normalised again it differs by 0.00% at most" in note for note in notes(told)] == [
        True
    ]


def test_what_a_format_cannot_do_without_is_refused_before_anything_is_written(
    directory: Path,
) -> None:
    bare = make_filled(directory / "bare.zarr", "none")
    last = make_filled(directory / "last.zarr", layers=())

    with pytest.raises(RefusedError, match="has no final state, and specforge files cannot do"):
        export_store(bare.path, directory / "out", Options("specforge"))
    with pytest.raises(RefusedError, match="has no captured layers, and modelopt files cannot do"):
        export_store(last.path, directory / "out", Options("modelopt"))
    assert not (directory / "out").exists()
    assert export_store(last.path, directory / "out", Options("eagle")).written == len(LENGTHS)


def test_a_norm_that_removes_a_channel_cannot_be_undone(directory: Path) -> None:
    from hsstore.create import create_store  # noqa: PLC0415

    weight = np.where(np.arange(HIDDEN) == 7, 0, WEIGHT).astype(np.float32)
    store = create_store(directory / "s.zarr", make_plan(), make_model(), norm_weight=weight)

    with pytest.raises(
        RefusedError, match="post-norm state, speculators files the pre-norm one: the"
    ):
        export_store(store.path, directory / "out", Options("speculators"))
