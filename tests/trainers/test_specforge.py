"""SpecForge 0.2.0 reads a store directly, and an export of it: the same batches, the same losses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from specforge.algorithms.eagle3.data import (
    build_offline_collator,
    build_offline_normalizer,
    build_offline_reader,
)
from specforge.modeling.target.target_head import TargetHead
from specforge.runtime.data_plane import FeatureDataLoader, LocalFeatureStore

from hsstore.errors import InputError
from hsstore.integrations.specforge import StoreFeatures
from hsstore.integrations.specforge.__main__ import main
from hsstore.loaders import Eagle3Dataset, eagle3_collate
from tests.trainers import tiny
from tests.trainers.running import run, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hsstore.store import Store

MAX_LENGTH = 32
"""Shorter than the longest samples."""
READER: dict[str, Any] = {"run_id": "r", "ttt_length": 3, "max_len": MAX_LENGTH}


def load(features: Any, refs: Any, *, workers: int = 0) -> list[Any]:
    """Load all batches with SpecForge's own loader, normalizer and collator."""
    loader = FeatureDataLoader(
        features,
        refs=refs,
        batch_size=4,
        collate_fn=build_offline_collator(),
        per_sample_transform=build_offline_normalizer(MAX_LENGTH),
        drop_last=False,
        strategy="eagle3",
        num_workers=workers,
    )
    return list(loader)


@pytest.fixture(scope="module")
def features(stores: dict[str, Store]) -> StoreFeatures:
    return StoreFeatures(stores["post-norm"].path)


@pytest.fixture(scope="module")
def config(room: Path, exported: Callable[[Any, str], Path]) -> Path:
    """Write a run's configuration, as a user does, for four steps on the CPU."""
    draft = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": tiny.VOCABULARY,
        "draft_vocab_size": tiny.DRAFT_VOCABULARY,
        "hidden_size": tiny.HIDDEN,
        "intermediate_size": tiny.INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": tiny.HEADS,
        "num_key_value_heads": tiny.KEY_HEADS,
        "head_dim": tiny.HIDDEN // tiny.HEADS,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    (room / "draft.json").write_text(json.dumps(draft))
    run = {
        "model": {
            "target_model_path": str(room / "target"),
            "draft_model_config": str(room / "draft.json"),
            "vocab_mapping_path": str(
                exported("specforge", "post-norm") / "vocab_mapping/vocab_mapping.pt"
            ),
            "torch_dtype": "bfloat16",
            "aux_hidden_state_layer_ids": list(tiny.CAPTURED),
        },
        "data": {
            "hidden_states_path": "replaced",
            "max_length": MAX_LENGTH,
            "cache_dir": str(room / "cache"),
            "dataloader_num_workers": 0,
        },
        "training": {
            "strategy": "eagle3",
            "num_epochs": 2,
            "max_steps": 4,
            "batch_size": 2,
            "ttt_length": 3,
            "learning_rate": 1e-3,
            "warmup_ratio": 0.0,
            "lr_scheduler": "constant",
            "attention_backend": "sdpa",
            "fsdp_sharding": "NO_SHARD",
            "log_interval": 1,
        },
        "tracking": {"report_to": "none"},
        "run_id": "tiny",
        "output_dir": str(room / "specforge-out"),
    }
    path = room / "specforge.json"
    path.write_text(json.dumps(run))
    return path


@pytest.mark.parametrize("final", ["post-norm", "pre-norm"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_store_gives_the_batches_of_an_export(
    stores: dict[str, Store], exported: Callable[[Any, str], Path], final: str, workers: int
) -> None:
    features = StoreFeatures(stores[final].path)
    files = build_offline_reader(str(exported("specforge", final)), **READER).read()

    expected = load(LocalFeatureStore("r"), files)
    found = load(features, features.refs(**READER), workers=workers)

    assert len(found) == len(expected) == 3
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.sample_ids == theirs.sample_ids
        assert mine.metadata == theirs.metadata
        assert mine.tensors.keys() == theirs.tensors.keys()
        for name, tensor in theirs.tensors.items():
            assert mine.tensors[name].dtype == tensor.dtype
            assert torch.equal(mine.tensors[name], tensor), name


def test_a_store_under_a_url_gives_the_batches_of_the_store(
    features: StoreFeatures, at_url: dict[str, str]
) -> None:
    there = StoreFeatures(at_url["post-norm"])

    found, expected = (load(one, one.refs(**READER)) for one in (there, features))

    assert len(found) == len(expected) == 3
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.sample_ids == theirs.sample_ids
        for name, tensor in theirs.tensors.items():
            assert torch.equal(mine.tensors[name], tensor), name


def test_the_command_tells_specforge_the_url(
    config: Path, at_url: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("specforge.cli.main", told.extend)

    main([at_url["post-norm"], "-c", str(config)])

    assert f"data.hidden_states_path={at_url['post-norm']}" in told


def test_states_are_those_of_the_model(model: Any, features: StoreFeatures) -> None:
    """The second way to what the store should hold: the model itself."""
    complete = [i for i in range(len(tiny.LENGTHS)) if i not in {tiny.PENDING, tiny.FAILED}]
    samples = tiny.make_samples()

    refs = features.refs(**READER)

    assert [ref.num_tokens for ref in refs] == [tiny.LENGTHS[i] for i in complete]
    for ref, index in zip(refs, complete, strict=True):
        captured = tiny.capture(model, samples[index].input_ids)
        tensors, handle = features.get(ref)
        features.release(handle)
        assert tensors["input_ids"].tolist() == samples[index].input_ids.tolist()
        assert tensors["loss_mask"].tolist() == samples[index].loss_mask.tolist()
        assert torch.equal(tensors["hidden_state"][0], captured.post)
        assert torch.equal(tensors["aux_hidden_state"][0], captured.aux.flatten(1))


def test_a_batch_is_ours_but_for_the_loss_mask_that_specforge_does_not_shift(
    stores: dict[str, Store], features: StoreFeatures, room: Path
) -> None:
    head = TargetHead.from_pretrained(str(room / "target"))
    dataset = Eagle3Dataset(stores["post-norm"].path)
    samples = [dataset[row] for row in range(4)]

    ours = eagle3_collate(samples, max_length=MAX_LENGTH)
    theirs = load(features, features.refs(**READER)[:4])[0].tensors
    ids, target, mask = head.preprocess(theirs["input_ids"], theirs["target"], theirs["loss_mask"])

    for line, sample in enumerate(samples):
        rows = min(len(sample["input_ids"]), MAX_LENGTH) - 1
        assert torch.equal(ids[line, :rows], ours["input_ids"][line, :rows])
        assert torch.equal(target[line, :rows], ours["target_states"][line, :rows])
        assert torch.equal(theirs["hidden_state"][line, :rows], ours["aux_states"][line, :rows])
        assert torch.equal(mask.squeeze(-1)[line, :rows], sample["loss_mask"][:rows])
        assert torch.equal(ours["loss_mask"][line, :rows], sample["loss_mask"][1 : rows + 1])


def test_training_on_the_store_gives_the_losses_of_training_on_an_export(
    config: Path, stores: dict[str, Store], exported: Callable[[Any, str], Path]
) -> None:
    export = exported("specforge", "post-norm")

    on_files = steps(
        "-m", "specforge.cli", "train", "-c", config, f"data.hidden_states_path={export}"
    )
    on_store = steps("-m", "hsstore.integrations.specforge", stores["post-norm"].path, "-c", config)

    assert len(on_store) == 4
    assert on_store == on_files
    assert on_store[0]["loss"] > 0
    assert len({step["loss"] for step in on_store}) == 4


def test_the_command_says_what_is_missing(
    config: Path, stores: dict[str, Store], room: Path
) -> None:
    store = str(stores["post-norm"].path)

    with pytest.raises(InputError, match=r"no\.zarr"):
        main([str(room / "no.zarr"), "-c", str(config)])
    with pytest.raises(InputError, match="torchrun -m hsstore"):
        main([store, "-c", str(config), "deployment.trainer.nproc_per_node=2"])
    no_map = run(
        "-m", "hsstore.integrations.specforge", store, "-c", config, "model.vocab_mapping_path="
    )

    assert no_map.returncode == 2
    assert "model.vocab_mapping_path is not set" in no_map.stderr.splitlines()[-1]


def test_a_reference_into_another_store_is_refused(
    stores: dict[str, Store], features: StoreFeatures
) -> None:
    other = StoreFeatures(stores["pre-norm"].path)
    with pytest.raises(InputError, match="is no sample of the store"):
        features.get(other.refs(**READER)[0])
    with pytest.raises(InputError, match="not written by a training"):
        features.put({}, sample_id="r:0", metadata={})


def test_a_split_is_served_alone_and_its_references_mean_the_same_everywhere(
    stores: dict[str, Store], features: StoreFeatures
) -> None:
    split = StoreFeatures(stores["post-norm"].path, split="test")
    (ref,) = split.refs(**READER)

    assert ref.num_tokens == tiny.LENGTHS[-1]
    for name, tensor in split.get(ref)[0].items():
        assert torch.equal(features.get(ref)[0][name], tensor), name
