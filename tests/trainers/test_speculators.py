"""speculators 0.9.0 reads a store directly, and an export of it: the same batches, the same losses."""

from __future__ import annotations

import argparse
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hs_connectors import HiddenStatesBackend
from safetensors.torch import load_file
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset
from speculators.train.dataloader import _setup_dataloader

from hsstore.errors import InputError
from hsstore.integrations.prepare import main, prepare, read_prepared
from hsstore.integrations.speculators import FORMAT, StoreTransfer
from hsstore.loaders import Eagle3Dataset, draft_vocabulary, eagle3_collate
from tests.trainers import tiny
from tests.trainers.running import steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hsstore.store import Store

PACK_ROWS = 64


@pytest.fixture(scope="module")
def prepared(room: Path, stores: dict[str, Store]) -> dict[str, Path]:
    """Give the data sets without states of both stores."""
    directories = {final: room / f"prepared-{final}" for final in stores}
    for final, directory in directories.items():
        prepare(
            stores[final].path,
            directory,
            FORMAT,
            draft_vocabulary=tiny.DRAFT_VOCABULARY,
            model=room / "target",
        )
    return directories


def of_store(directory: Path) -> ArrowDataset:
    """Give speculators' data set with the backend that its command line would choose."""
    backend = HiddenStatesBackend.registry["hsstore"]
    transfer = backend.from_train_args(argparse.Namespace(hsstore_store=None), str(directory))
    transfer = pickle.loads(pickle.dumps(transfer))
    return ArrowDataset(1024, directory, transfer, on_missing="raise")


def load(dataset: ArrowDataset) -> list[dict[str, Any]]:
    """Load all packed batches with speculators' own loader."""
    return list(
        _setup_dataloader(dataset, PACK_ROWS, tiny.HIDDEN, num_workers=0, preprocess=shift_batch)
    )


@pytest.mark.parametrize("final", ["post-norm", "pre-norm"])
def test_the_store_gives_the_batches_of_an_export(
    prepared: dict[str, Path], exported: Callable[[Any, str], Path], final: str
) -> None:
    theirs = ArrowDataset(1024, exported("speculators", final), on_missing="raise")
    mine = of_store(prepared[final])

    expected, found = load(theirs), load(mine)

    assert len(mine) == len(theirs) == 10
    assert len(found) == len(expected) > 2
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert one["error_records"] == other["error_records"] == 0
        for name in one.keys() - {"error_records"}:
            assert one[name].dtype == other[name].dtype
            assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("final", ["post-norm", "pre-norm"])
def test_a_store_under_a_url_gives_the_batches_of_the_store(
    prepared: dict[str, Path], at_url: dict[str, str], room: Path, final: str
) -> None:
    """Prepared from there, or moved there later."""
    directory = room / f"prepared-url-{final}"
    prepare(at_url[final], directory, FORMAT)
    moved = StoreTransfer(read_prepared(prepared[final], FORMAT, at_url[final]))

    expected = load(of_store(prepared[final]))
    for dataset in (
        of_store(directory),
        ArrowDataset(1024, prepared[final], moved, on_missing="raise"),
    ):
        found = load(dataset)
        assert len(found) == len(expected) > 2
        for one, other in zip(found, expected, strict=True):
            for name in other.keys() - {"error_records"}:
                assert torch.equal(one[name], other[name]), name


def test_states_are_those_of_the_model(model: Any, prepared: dict[str, Path]) -> None:
    """The second way to what the store should hold: the model itself."""
    complete = [i for i in range(len(tiny.LENGTHS)) if i not in {tiny.PENDING, tiny.FAILED}]
    before, after = of_store(prepared["pre-norm"]), of_store(prepared["post-norm"])
    samples = tiny.make_samples()

    for row, index in enumerate(complete):
        captured = tiny.capture(model, samples[index].input_ids)
        item, remade = before[row], after[row]
        assert item["input_ids"].tolist() == samples[index].input_ids.tolist()
        assert item["loss_mask"].tolist() == samples[index].loss_mask.tolist()
        assert torch.equal(item["hidden_states"], captured.aux.flatten(1))
        assert torch.equal(item["verifier_last_hidden_states"], captured.pre)
        assert torch.equal(remade["hidden_states"], captured.aux.flatten(1))
        again = model.model.norm(remade["verifier_last_hidden_states"]).float()
        post = captured.post.float()
        assert ((again - post).norm(dim=1) / post.norm(dim=1)).max() < 0.01


def test_a_packed_batch_is_ours_but_for_positions_that_count_from_one(
    stores: dict[str, Store], prepared: dict[str, Path]
) -> None:
    theirs = load(of_store(prepared["pre-norm"]))[0]
    dataset = Eagle3Dataset(stores["pre-norm"].path)
    by_tokens = {
        tuple(one["input_ids"][1:].tolist()): one for one in map(dataset.__getitem__, range(10))
    }
    documents = theirs["document_ids"][0]
    chosen = [
        by_tokens[tuple(theirs["input_ids"][0, documents == document].tolist())]
        for document in range(int(documents.max()) + 1)
    ]

    ours: Any = eagle3_collate(chosen, pack_rows=PACK_ROWS)

    names = {
        "input_ids": "input_ids",
        "aux_states": "hidden_states",
        "target_states": "verifier_last_hidden_states",
        "loss_mask": "loss_mask",
        "document_ids": "document_ids",
    }
    for mine, other in names.items():
        assert torch.equal(ours[mine], theirs[other]), mine
    real = documents >= 0
    assert torch.equal(ours["position_ids"][0, real] + 1, theirs["position_ids"][0, real])


def train(module: str, room: Path, data: Path, *arguments: str | Path) -> tuple[Any, Any]:
    """Train with speculators' own command; return what it says of its steps, and the draft."""
    out = room / f"{module}-out"
    said = steps(
        "-m", module, "train", "--speculator-type", "eagle3",
        "--verifier-name-or-path", room / "target", "--data-path", data,
        "--target-layer-ids", *[str(layer + 1) for layer in tiny.CAPTURED],
        "--num-layers", "1", "--draft-arch", "llama", "--mask-token-id", "0",
        "--draft-vocab-size", str(tiny.DRAFT_VOCABULARY), "--total-seq-len", str(PACK_ROWS),
        "--full-attention-indices", "0", "--draft-attn-impl", "sdpa", "--loss-implementation", "eager",
        "--optimizer", "adamw", "--lr", "1e-3", "--scheduler-type", "none", "--on-missing", "raise",
        "--epochs", "1", "--max-steps", "3", "--ttt-steps", "2", "--train-data-ratio", "0.8",
        "--no-resume-from-checkpoint", "--save-path", out, "--hidden-states-dtype", "bfloat16",
        *arguments,
    )  # fmt: skip
    draft = load_file(out / "0" / "model.safetensors")
    shutil.rmtree(out)
    return said, draft


def test_training_on_the_store_gives_the_losses_of_training_on_an_export(
    room: Path, prepared: dict[str, Path], exported: Callable[[Any, str], Path]
) -> None:
    """From the store with worker processes, as speculators does by default: they are spawned."""
    files = exported("speculators", "pre-norm")
    backend = ("--hidden-states-backend", "hsstore")

    # Both mostly import: side by side they take half the time.
    with ThreadPoolExecutor(2) as pool:
        of_files = pool.submit(train, "speculators", room, files, "--num-workers", "0")
        of_store = pool.submit(
            train,
            "hsstore.integrations.speculators",
            room,
            prepared["pre-norm"],
            *("--num-workers", "1", *backend),
        )
    on_files, trained = of_files.result()
    on_store, draft = of_store.result()

    assert on_store == on_files
    assert len({step["loss"] for step in on_store if "loss" in step}) == 3
    assert any("loss_epoch" in step for step in on_store)  # of samples that were kept back
    assert draft.keys() == trained.keys()
    for name, weight in trained.items():
        assert torch.equal(draft[name], weight), name


def test_the_draft_vocabulary_is_that_of_the_loaders(
    stores: dict[str, Store], prepared: dict[str, Path]
) -> None:
    path = stores["post-norm"].path
    expected = draft_vocabulary(path, tiny.DRAFT_VOCABULARY, tiny.VOCABULARY)
    for name in ("d2t", "t2d"):
        found = np.load(prepared["post-norm"] / f"{name}-{tiny.DRAFT_VOCABULARY}.npy")
        assert torch.equal(torch.from_numpy(found), getattr(expected, name))


def test_what_does_not_fit_together_is_refused(
    stores: dict[str, Store],
    prepared: dict[str, Path],
    exported: Callable[[Any, str], Path],
    tmp_path: Path,
) -> None:
    path, directory = stores["pre-norm"].path, prepared["pre-norm"]
    with pytest.raises(InputError, match=r"hsstore\.integrations\.prepare"):
        read_prepared(exported(FORMAT, "pre-norm"), FORMAT)
    with pytest.raises(InputError, match="prepared for speculators, not for modelopt"):
        read_prepared(directory, "modelopt")
    with pytest.raises(InputError, match="is not the store"):
        read_prepared(directory, FORMAT, str(stores["post-norm"].path))
    with pytest.raises(InputError, match="is not empty"):
        prepare(path, directory, FORMAT)
    with pytest.raises(InputError, match="--model"):
        prepare(path, tmp_path / "data", FORMAT, draft_vocabulary=8)
    with pytest.raises(InputError, match="extracted before the training"):
        StoreTransfer(read_prepared(directory, FORMAT)).get_generated({})


def test_a_store_that_was_moved_is_named(
    stores: dict[str, Store], prepared: dict[str, Path], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.zarr"
    elsewhere.symlink_to(stores["pre-norm"].path)
    here = read_prepared(prepared["pre-norm"], FORMAT)
    there = read_prepared(prepared["pre-norm"], FORMAT, str(elsewhere))
    assert there.path == elsewhere
    assert torch.equal(here.read(0)["hidden_states"], there.read(0)["hidden_states"])


def test_what_was_prepared_says_what_the_trainer_has_to_be_told(
    stores: dict[str, Store], room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also for the other trainers, whose own files of samples are not mentioned."""
    path = str(stores["pre-norm"].path)
    target = ("--model", str(room / "target"), "--draft-vocab", "64")

    main([path, str(tmp_path / "data"), "--format", "speculators", "--split", "test"])
    speculators = capsys.readouterr().out
    main([path, str(tmp_path / "specforge"), "--format", "specforge", *target])
    specforge = capsys.readouterr().out
    main([path, str(tmp_path / "modelopt"), "--format", "modelopt", *target])
    modelopt = capsys.readouterr().out

    assert "--target-layer-ids 2 4 5\n" in speculators
    assert len(of_store(tmp_path / "data")) == 1
    assert "aux_hidden_state_layer_ids: [1, 3, 4]\n" in specforge
    assert "hidden_states_path" not in specforge
    assert (tmp_path / "specforge/vocab_mapping/vocab_mapping.pt").exists()
    assert "eagle_aux_hidden_state_layer_ids=[1, 3, 4]\n" in modelopt
    assert "Offline" not in modelopt
    assert len(torch.load(tmp_path / "modelopt/d2t.pt")) == 64
