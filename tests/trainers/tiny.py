"""A tiny target model, and stores of its own states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hsstore.create import create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.loaders.tensors import bits_of
from hsstore.spec import FailureReason, Model, Norm
from hsstore.testing.finite import commit_states
from hsstore.testing.stores import SMALL_LAYOUT

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.spec import FinalState
    from hsstore.store import Store

VOCABULARY, HIDDEN, HEADS, KEY_HEADS, INTERMEDIATE, LAYERS = 320, 64, 4, 2, 128, 8
CAPTURED = (1, 3, 4)
"""What all recipes capture of 8 layers: 1, n//2-1 and n-4."""
LENGTHS = (40, 7, 24, 3, 33, 18, 29, 12, 21, 36, 15, 27)
PENDING, FAILED = 3, 5
DRAFT_VOCABULARY = 128


@dataclass(frozen=True, slots=True)
class Captured:
    """The states of one sample, bfloat16 (T, layers, H) and (T, H)."""

    aux: torch.Tensor
    pre: torch.Tensor
    post: torch.Tensor


def make_target(path: Path) -> Any:
    """Save a random Llama in two files, so that it has the index that SpecForge wants."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).eval()
    with torch.no_grad():
        model.model.norm.weight.uniform_(0.5, 1.5)
        model.lm_head.weight.mul_(10)  # distributions that are not flat
    model.save_pretrained(path, max_shard_size="400KB")
    return model


def make_samples() -> list[TokenizedSample]:
    """Make conversations of random tokens, the last half of each supervised."""
    generator = np.random.default_rng(0)
    return [
        TokenizedSample(
            sample_id=f"chat/{index}",
            input_ids=generator.integers(3, VOCABULARY, tokens, dtype=np.int32),
            loss_mask=(np.arange(tokens) >= tokens // 2).astype(np.uint8),
            split="test" if index == len(LENGTHS) - 1 else "train",
            metadata={},
        )
        for index, tokens in enumerate(LENGTHS)
    ]


@torch.inference_mode()
def capture(model: Any, input_ids: npt.NDArray[np.int32]) -> Captured:
    """Run the model over a conversation, and keep what the store is to hold."""
    kept: dict[Any, torch.Tensor] = {}

    def keep(name: object, value: Any) -> None:
        tensor = value[0] if isinstance(value, tuple) else value
        kept[name] = tensor[0]

    decoder = model.model
    hooks = [
        decoder.layers[k].register_forward_hook(lambda _, __, out, k=k: keep(k, out))
        for k in CAPTURED
    ]
    hooks.append(decoder.norm.register_forward_hook(lambda _, args, __: keep("pre", args)))
    hooks.append(decoder.norm.register_forward_hook(lambda _, __, out: keep("post", out)))
    decoder(input_ids=torch.from_numpy(input_ids.astype(np.int64))[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return Captured(torch.stack([kept[k] for k in CAPTURED], 1), kept["pre"], kept["post"])


def make_store(path: Path, model: Any, final: FinalState) -> Store:
    """Create a store of the model's states: one sample pending, one failed, all others complete."""
    samples = make_samples()
    described = Model(
        id="tiny",
        capture_hash="0123",
        num_layers=LAYERS,
        hidden=HIDDEN,
        layers=CAPTURED,
        final=final,
        norm=Norm(epsilon=model.config.rms_norm_eps),
        dtype="bfloat16",
    )
    store = create_store(
        path,
        TokenizedDataset.from_samples(samples),
        described,
        norm_weight=model.model.norm.weight.detach().float().numpy(),
        options=SMALL_LAYOUT,
    )
    states = {}
    for index, sample in enumerate(samples):
        captured = capture(model, sample.input_ids)
        last = captured.post if final == "post-norm" else captured.pre
        states[index] = bits_of(torch.cat([captured.aux, last[:, None]], 1).contiguous())
    del states[PENDING], states[FAILED]
    commit_states(store, states, {FAILED: FailureReason.BAD_DATA})
    return store
