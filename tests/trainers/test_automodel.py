"""NeMo Automodel 0.7.0 reads a store directly, and a cache of its own: the same batches, the same losses.

The cache is written here, by Automodel's functions, from states that the model gives anew.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from nemo_automodel.components.datasets.llm.eagle3_cache import (
    build_cached_eagle3_dataloader,
    write_manifest,
    write_shard,
)
from nemo_automodel.components.speculative.eagle.core import (
    Eagle3TrainerModule,
    _compute_target_distribution,
)
from nemo_automodel.components.speculative.eagle.registry import resolve_eagle3_draft_spec
from nemo_automodel.components.speculative.eagle.target import _shift_left_with_zero
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from hsstore.errors import InputError
from hsstore.integrations.automodel import AutomodelDataset
from hsstore.loaders import Eagle3Dataset, eagle3_collate
from tests.trainers import tiny

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.store import Store

SEQUENCE = 32
"""Shorter than the longest samples."""
COMPLETE = [i for i in range(len(tiny.LENGTHS)) if i not in {tiny.PENDING, tiny.FAILED}]


def open_dataset(path: Path | str, room: Path) -> AutomodelDataset:
    return AutomodelDataset(
        path,
        room / "target",
        draft_vocabulary=tiny.DRAFT_VOCABULARY,
        seq_length=SEQUENCE,
        dtype=torch.float32,
    )


@pytest.fixture(scope="module")
def dataset(stores: dict[str, Store], room: Path) -> AutomodelDataset:
    return open_dataset(stores["post-norm"].path, room)


@pytest.fixture(scope="module")
def cache(model: Any, dataset: AutomodelDataset, room: Path) -> str:
    """Write a cache as `precompute_eagle3` does: the vocabulary is that of the store."""
    directory = str(room / "automodel-cache")
    selected = dataset.selected_token_ids
    manifest = {
        "draft_vocab_size": len(selected),
        "num_samples": len(COMPLETE),
        "shard_size": len(COMPLETE),
        "selected_token_ids": selected.tolist(),
    }
    write_manifest(directory, manifest)
    items = [_cached(model, tiny.make_samples()[i], dataset) for i in COMPLETE]
    write_shard(
        directory, 0, {name: torch.stack([one[name] for one in items]) for name in items[0]}
    )
    return directory


def _cached(model: Any, sample: Any, dataset: AutomodelDataset) -> dict[str, torch.Tensor]:
    captured = tiny.capture(model, sample.input_ids)
    rows = min(len(sample.input_ids), SEQUENCE)
    missing = SEQUENCE - rows
    ids = pad(torch.from_numpy(sample.input_ids).long()[:rows], (0, missing))[None]
    mask = pad(torch.from_numpy(sample.loss_mask).long()[:rows], (0, missing))[None]
    attention = pad(torch.ones(rows, dtype=torch.int64), (0, missing))
    with torch.no_grad():
        logits = captured.post[:rows].float() @ model.lm_head.weight.float().T
    shifted = _shift_left_with_zero(mask)
    probabilities, position_mask = _compute_target_distribution(
        _shift_left_with_zero(pad(logits, (0, 0, 0, missing))[None]),
        dataset.selected_token_ids,
        dataset.selected_token_mask,
        shifted,
    )
    return {
        "input_ids": _shift_left_with_zero(ids)[0],
        "attention_mask": attention,
        "loss_mask": shifted[0],
        "aux_hidden_states": pad(captured.aux.flatten(1)[:rows].float(), (0, 0, 0, missing)),
        "position_mask": position_mask[0],
        "target_probs": probabilities[0],
    }


def batches(dataset: AutomodelDataset) -> list[dict[str, torch.Tensor]]:
    return list(DataLoader(dataset, batch_size=4))


def test_the_store_gives_the_batches_of_a_cache(dataset: AutomodelDataset, cache: str) -> None:
    expected = list(build_cached_eagle3_dataloader(cache_dir=cache, batch_size=4, shuffle=False))
    found = batches(pickle.loads(pickle.dumps(dataset)))

    assert len(found) == len(expected) == 3
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert mine[name].dtype == tensor.dtype, name
            assert torch.equal(mine[name], tensor), name


def test_some_rows_are_supervised_and_some_have_their_token_outside_the_draft(
    dataset: AutomodelDataset,
) -> None:
    items = [dataset[row] for row in range(len(dataset))]
    loss = torch.stack([one["loss_mask"] for one in items]).bool()
    position = torch.stack([one["position_mask"] for one in items])[..., 0]
    assert 0 < position.sum() < loss.sum()
    assert not (position & ~loss).any()


def test_a_batch_is_ours_padded_to_one_length(
    stores: dict[str, Store], dataset: AutomodelDataset
) -> None:
    source = Eagle3Dataset(stores["post-norm"].path)
    ours = eagle3_collate([source[row] for row in range(4)], max_length=SEQUENCE)
    theirs = batches(dataset)[0]

    rows = ours["input_ids"].shape[1]
    real = ours["attention_mask"].bool()
    assert rows == SEQUENCE - 1
    assert torch.equal(theirs["input_ids"][:, :rows], ours["input_ids"])
    assert torch.equal(theirs["loss_mask"][:, :rows], ours["loss_mask"])
    assert torch.equal(theirs["attention_mask"].sum(1), real.sum(1) + 1)
    aux = theirs["aux_hidden_states"][:, :rows]
    assert torch.equal(aux[real], ours["aux_states"].float()[real])
    logits = ours["target_states"].float() @ dataset._output.T
    expected = logits[..., dataset.selected_token_ids].softmax(-1)
    torch.testing.assert_close(theirs["target_probs"][:, :rows][real], expected[real])


def train(model: Any, dataset: AutomodelDataset, loader: Any) -> list[float]:
    """Make a step with each batch; return the losses."""
    torch.manual_seed(0)
    config = model.config
    fields = {
        **config.to_dict(),
        "draft_vocab_size": tiny.DRAFT_VOCABULARY,
        "target_hidden_size": config.hidden_size,
        "architectures": ["LlamaEagle3DraftModel"],
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
        "fc_norm": False,
        "norm_output": False,
        "parallel_drafting": False,
    }
    draft_class = resolve_eagle3_draft_spec(["LlamaForCausalLM"]).draft_cls
    draft = draft_class(type(config).from_dict(fields)).to(torch.float32)
    draft.copy_embeddings_from_target(SimpleNamespace(weight=dataset.target_embeddings()))
    draft.set_vocab_mapping(dataset.selected_token_ids)
    draft.freeze_embeddings()
    trainer = Eagle3TrainerModule(
        draft,
        selected_token_ids=dataset.selected_token_ids,
        selected_token_mask=dataset.selected_token_mask,
        ttt_steps=2,
    )
    optimizer = torch.optim.AdamW([p for p in trainer.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for batch in loader:
        step = trainer(**batch)
        optimizer.zero_grad()
        step.loss.backward()
        optimizer.step()
        losses.append(step.loss.item())
    return losses


def test_training_on_the_store_gives_the_losses_of_training_on_a_cache(
    model: Any, dataset: AutomodelDataset, cache: str
) -> None:
    files = build_cached_eagle3_dataloader(cache_dir=cache, batch_size=4, shuffle=False)
    store = DataLoader(dataset, batch_size=4)

    on_files, on_store = train(model, dataset, files), train(model, dataset, store)

    assert on_store == on_files
    assert len(set(on_store)) == 3


def test_states_before_the_norm_give_the_same_batches(
    stores: dict[str, Store], dataset: AutomodelDataset, room: Path
) -> None:
    """Our norm and the model's sum in other orders: a state in a million has another last bit."""
    before = batches(open_dataset(stores["pre-norm"].path, room))
    for mine, theirs in zip(before, batches(dataset), strict=True):
        for name, tensor in theirs.items():
            tolerance = 1e-3 if name == "target_probs" else 0
            torch.testing.assert_close(mine[name], tensor, rtol=0, atol=tolerance)


def test_a_store_under_a_url_gives_the_batches_of_the_store(
    at_url: dict[str, str], dataset: AutomodelDataset, room: Path
) -> None:
    found = batches(open_dataset(at_url["post-norm"], room))
    for mine, theirs in zip(found, batches(dataset), strict=True):
        for name, tensor in theirs.items():
            assert torch.equal(mine[name], tensor), name


def test_numbers_that_do_not_fit_are_refused(stores: dict[str, Store], room: Path) -> None:
    path = stores["post-norm"].path
    with pytest.raises(InputError, match="seq_length"):
        AutomodelDataset(path, room / "target", draft_vocabulary=8, seq_length=1)
    with pytest.raises(InputError, match="draft vocabulary of 999"):
        AutomodelDataset(path, room / "target", draft_vocabulary=999, seq_length=8)
    with pytest.raises(InputError, match=r"dtype is torch\.int64"):
        AutomodelDataset(path, room / "target", draft_vocabulary=8, seq_length=8, dtype=torch.int64)
    with pytest.raises(InputError, match="no safetensors"):
        AutomodelDataset(path, room, draft_vocabulary=8, seq_length=8)
