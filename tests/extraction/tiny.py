"""A tiny random Llama checkpoint and tokenised samples: no torch, no tokenizer, no download."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LAYERS, HIDDEN, VOCABULARY = 6, 64, 512
SLOTS = 4
"""Three layers and the final state."""
ROW_BYTES = SLOTS * HIDDEN * 2

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}


def make_checkpoint(directory: Path, *, seed: int = 0) -> Path:
    """Save a random Llama of 6 layers, 64 wide, in bfloat16."""
    generator = np.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": (2 * HIDDEN, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (2 * HIDDEN, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN),
        }
    weights = {
        name: generator.normal(1.0 if len(shape) == 1 else 0.0, 0.2, shape).astype(
            ml_dtypes.bfloat16
        )
        for name, shape in shapes.items()
    }
    directory.mkdir(parents=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(_CONFIG))
    return directory


def make_lengths(samples: int, *, longest: int = 120, seed: int = 0) -> list[int]:
    """Choose lengths of 1 to `longest` tokens."""
    lengths: list[int] = np.random.default_rng(seed).integers(1, longest + 1, samples).tolist()
    return lengths


def write_data(path: Path, lengths: Sequence[int], *, seed: int = 0) -> Path:
    """Write tokenised samples of the given lengths as JSONL."""
    generator = np.random.default_rng(seed)
    with path.open("w") as file:
        for index, length in enumerate(lengths):
            record = {
                "id": f"sample-{index}",
                "input_ids": generator.integers(1, VOCABULARY, length).tolist(),
                "loss_mask": [1] * length,
            }
            file.write(json.dumps(record) + "\n")
    return path
