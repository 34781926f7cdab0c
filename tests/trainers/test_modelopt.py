"""ModelOpt 0.47.0 reads a store directly, and an export of it: the same batches, the same losses."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import modelopt.torch.speculative as mtsp
import pytest
import torch
from modelopt.torch.speculative.eagle.utils import (
    EagleOfflineDataCollator,
    OfflineSupervisedDataset,
)
from modelopt.torch.speculative.utils import load_vlm_or_llm
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from hsstore.integrations.modelopt import ModelOptDataset
from hsstore.loaders import Eagle3Dataset
from tests.trainers import tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hsstore.store import Store

TRAIN_LENGTH = 32
"""Shorter than the longest samples."""
collate = EagleOfflineDataCollator(TRAIN_LENGTH)


def of_files(directory: Path, *, answer_only_loss: bool = True) -> OfflineSupervisedDataset:
    """Give ModelOpt's own data set of an export."""
    files = sorted((directory / "samples").glob("*.pt"))
    return OfflineSupervisedDataset(files, answer_only_loss=answer_only_loss)


def assert_same(mine: Any, theirs: Any) -> None:
    """Compare what may hold tensors, bit by bit."""
    if isinstance(theirs, dict):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            assert_same(mine[name], value)
    elif isinstance(theirs, torch.Tensor):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    else:
        assert mine == theirs


@pytest.mark.parametrize("final", ["post-norm", "pre-norm"])
@pytest.mark.parametrize("answer_only_loss", [True, False])
def test_the_store_gives_the_samples_and_batches_of_an_export(
    stores: dict[str, Store],
    exported: Callable[[Any, str], Path],
    final: str,
    answer_only_loss: bool,  # noqa: FBT001
) -> None:
    theirs = of_files(exported("modelopt", final), answer_only_loss=answer_only_loss)
    mine = ModelOptDataset(stores[final].path, answer_only_loss=answer_only_loss)
    mine = pickle.loads(pickle.dumps(mine))

    assert len(mine) == len(theirs) == 10
    for row in range(len(theirs)):
        assert_same(mine[row], theirs[row])
    assert_same(collate([mine[0], mine[1]]), collate([theirs[0], theirs[1]]))


def test_a_store_under_a_url_gives_the_batches_of_the_store(
    stores: dict[str, Store], at_url: dict[str, str]
) -> None:
    for final, store in stores.items():
        mine, theirs = ModelOptDataset(at_url[final]), ModelOptDataset(store.path)
        assert len(mine) == len(theirs) == 10
        assert_same(collate([mine[0], mine[1]]), collate([theirs[0], theirs[1]]))


def test_worker_processes_read_the_same(stores: dict[str, Store]) -> None:
    """As transformers starts them: forked, with the store open here."""
    dataset = ModelOptDataset(stores["post-norm"].path)
    here = [collate([dataset[row], dataset[row + 1]]) for row in range(0, len(dataset), 2)]

    loader = DataLoader(dataset, batch_size=2, collate_fn=collate, num_workers=2)

    for mine, theirs in zip(here, loader, strict=True):
        assert_same(mine, theirs)


def test_a_batch_is_ours_with_a_row_more(stores: dict[str, Store]) -> None:
    """ModelOpt shifts in its model; labels are the tokens that we shift."""
    path = stores["post-norm"].path
    sample, theirs = Eagle3Dataset(path)[1], ModelOptDataset(path)[1]

    assert torch.equal(theirs["input_ids"], sample["input_ids"])
    assert torch.equal(theirs["labels"][:-1], sample["input_ids"][1:])
    assert torch.equal(theirs["loss_mask"], sample["loss_mask"])
    assert torch.equal(theirs["aux_hidden_states"], sample["aux_states"])
    assert torch.equal(theirs["base_model_hidden_states"], sample["final_state"])


def convert(target: Path, vocabulary: Path) -> Any:
    """Make ModelOpt's draft for the tiny target, always with the same weights."""
    torch.manual_seed(0)
    model = load_vlm_or_llm(
        str(target), use_fake_base=True, use_offline_training=True, dtype="auto", device_map="cpu"
    )
    architecture = {
        "num_attention_heads": tiny.HEADS,
        "num_key_value_heads": tiny.KEY_HEADS,
        "head_dim": tiny.HIDDEN // tiny.HEADS,
        "intermediate_size": tiny.INTERMEDIATE,
        "draft_vocab_size": tiny.DRAFT_VOCABULARY,
    }
    config = {
        "eagle_offline": True,
        "eagle_ttt_steps": 2,
        "eagle_use_torch_compile": False,
        "eagle_architecture_config": architecture,
    }
    mtsp.convert(model, [("eagle", config)])
    mtsp.plugins.HFEagleModel.load_draft_vocab_cache(model, str(vocabulary))
    return model


def train(model: Any, dataset: Any, room: Path) -> list[float]:
    """Train three steps; return their losses."""
    arguments = TrainingArguments(
        output_dir=str(room / "modelopt-out"),
        per_device_train_batch_size=2,
        max_steps=3,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=collate)
    trainer.can_return_loss = True
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def test_training_on_the_store_gives_the_losses_of_training_on_an_export(
    stores: dict[str, Store], exported: Callable[[Any, str], Path], room: Path
) -> None:
    export = exported("modelopt", "post-norm")

    on_files, on_store = (
        (model := convert(room / "target", export / "d2t.pt"), train(model, dataset, room))
        for dataset in (of_files(export), ModelOptDataset(stores["post-norm"].path))
    )

    assert on_store[1] == on_files[1]
    assert len(set(on_store[1])) == 3
    trained = on_files[0].state_dict()
    assert_same(on_store[0].state_dict(), trained)


def test_states_before_the_norm_are_said_to_be_so(
    stores: dict[str, Store], exported: Callable[[Any, str], Path], room: Path
) -> None:
    """The same batch from both stores has the same loss; without the flag it has not."""
    model = convert(room / "target", exported("modelopt", "post-norm") / "d2t.pt")
    model.train()
    batches = [collate([ModelOptDataset(store.path)[0]]) for store in stores.values()]

    with torch.no_grad():
        losses = [float(model(**batch).loss) for batch in batches]
        batches[1]["base_model_outputs"]["base_hidden_prenorm"] = False
        wrong = float(model(**batches[1]).loss)

    assert losses[0] == losses[1] != wrong
