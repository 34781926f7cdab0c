"""A random Llama as wide as Kimi-K2.5 that computes next to nothing: many bytes of states a second."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

VOCABULARY = 512
LAYERS = 4
CAPTURED = "0,1,2"
"""All but the last, whose output SGLang cannot hand over."""
_HEADS, _HEAD_WIDTH, _INNER = 2, 64, 64
_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": 1,
    "head_dim": _HEAD_WIDTH,
    "intermediate_size": _INNER,
    "hidden_act": "silu",
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "torch_dtype": "float32",
}


def make_wide_llama(directory: Path, hidden: int, *, seed: int = 0) -> Path:
    """Save the checkpoint, float32, without a tokenizer."""
    directory.mkdir()
    generator = np.random.default_rng(seed)
    weights = {name: _draw(generator, shape) for name, shape in _shapes(hidden).items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = _CONFIG | {"hidden_size": hidden}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    width = _HEADS * _HEAD_WIDTH
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (width, hidden),
        "self_attn.k_proj": (_HEAD_WIDTH, hidden),
        "self_attn.v_proj": (_HEAD_WIDTH, hidden),
        "self_attn.o_proj": (hidden, width),
        "mlp.gate_proj": (_INNER, hidden),
        "mlp.up_proj": (_INNER, hidden),
        "mlp.down_proj": (hidden, _INNER),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (VOCABULARY, hidden),
    }
    for number in range(LAYERS):
        prefix = f"model.layers.{number}."
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _draw(generator: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    if len(shape) == 1:  # a norm
        return np.ones(shape, np.float32)
    return generator.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)
