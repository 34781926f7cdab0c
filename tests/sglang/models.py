"""Tiny random checkpoints of the architectures that matter, float32, without torch.

Weights are so large that every layer changes its input visibly: a wrong layer, norm or position is
wrong by more than 10 %.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

if TYPE_CHECKING:
    import numpy.typing as npt

CONFIGS = Path(__file__).parent / "data"
LAYERS = (0, 2, 4)
"""The layers of these models (they have 6) that tests capture."""
VOCABULARY = 512
KIMI_ARGUMENTS = (
    "--language-only",
    "--encoder-urls",
    "http://127.0.0.1:9",  # asked for images only
    "--trust-remote-code",
)
"""SGLang's, for a Kimi-K2.5 without a vision tower."""

_TEXT_PREFIX = "language_model."
"""Of a Kimi-K2.5's text weights; its text model is a DeepSeek-V3."""
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "torch_dtype": "float32",
}

Shapes: TypeAlias = dict[str, tuple[int, ...]]


def make_llama(directory: Path, *, hidden: int = 256, seed: int = 0) -> Path:
    """Save a Llama of 6 layers."""
    config = _LLAMA | {"hidden_size": hidden, "intermediate_size": hidden}
    shapes = _outer(config)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= _prefixed(prefix + "self_attn.", _grouped_attention(hidden))
        shapes |= _prefixed(prefix + "mlp.", _mlp(hidden, hidden))
        shapes |= _layer_norms(prefix, hidden)
    return _save(_draw(shapes, seed), directory, config)


def make_deepseek(directory: Path, *, seed: int = 0) -> Path:
    """Save a DeepSeek-V3: MLA with a q_lora, YaRN, one dense layer, MoE with `noaux_tc` routing."""
    config = json.loads((CONFIGS / "deepseek_v3/config.json").read_bytes())
    return _save(_draw(_deepseek_shapes(config), seed), directory, config)


def make_kimi(directory: Path, *, seed: int = 0) -> Path:
    """Save a Kimi-K2.5: a DeepSeek-V3 as its text model, with a vision tower that has no weights."""
    config = json.loads((CONFIGS / "kimi_k25/config.json").read_bytes())
    weights = _draw(_deepseek_shapes(config["text_config"]), seed)
    _save({_TEXT_PREFIX + name: weight for name, weight in weights.items()}, directory, config)
    for name in ("preprocessor_config.json", "kimi_proc.py"):
        shutil.copy(CONFIGS / "kimi_k25" / name, directory)
    return directory


def make_kimis_text_model(directory: Path, *, seed: int = 0) -> Path:
    """Save the text model of the Kimi-K2.5 of this seed alone: transformers knows it as DeepSeek."""
    config = json.loads((CONFIGS / "kimi_k25/config.json").read_bytes())["text_config"]
    return _save(_draw(_deepseek_shapes(config), seed), directory, config)


def _deepseek_shapes(config: dict[str, Any]) -> Shapes:
    hidden, shapes = config["hidden_size"], _outer(config)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= _prefixed(prefix + "self_attn.", _latent_attention(config))
        shapes |= _layer_norms(prefix, hidden)
        dense = layer < config["first_k_dense_replace"]
        feed_forward = _mlp(hidden, config["intermediate_size"]) if dense else _experts(config)
        shapes |= _prefixed(prefix + "mlp.", feed_forward)
    return shapes


def _outer(config: dict[str, Any]) -> Shapes:
    hidden, words = config["hidden_size"], config["vocab_size"]
    return {
        "model.embed_tokens.weight": (words, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (words, hidden),
    }


def _layer_norms(prefix: str, hidden: int) -> Shapes:
    names = ("input_layernorm", "post_attention_layernorm")
    return {f"{prefix}{name}.weight": (hidden,) for name in names}


def _mlp(hidden: int, inner: int) -> Shapes:
    return {
        "gate_proj.weight": (inner, hidden),
        "up_proj.weight": (inner, hidden),
        "down_proj.weight": (hidden, inner),
    }


def _experts(config: dict[str, Any]) -> Shapes:
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    count = config["n_routed_experts"]
    shapes: Shapes = {
        "gate.weight": (count, hidden),
        "gate.e_score_correction_bias": (count,),
    }
    for expert in range(count):
        shapes |= _prefixed(f"experts.{expert}.", _mlp(hidden, inner))
    return shapes | _prefixed("shared_experts.", _mlp(hidden, inner * config["n_shared_experts"]))


def _grouped_attention(hidden: int) -> Shapes:
    return {
        "q_proj.weight": (hidden, hidden),
        "k_proj.weight": (hidden // 2, hidden),
        "v_proj.weight": (hidden // 2, hidden),
        "o_proj.weight": (hidden, hidden),
    }


def _latent_attention(config: dict[str, Any]) -> Shapes:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    plain, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    value = config["v_head_dim"]
    return {
        "q_a_proj.weight": (q_rank, hidden),
        "q_a_layernorm.weight": (q_rank,),
        "q_b_proj.weight": (heads * (plain + rope), q_rank),
        "kv_a_proj_with_mqa.weight": (kv_rank + rope, hidden),
        "kv_a_layernorm.weight": (kv_rank,),
        "kv_b_proj.weight": (heads * (plain + value), kv_rank),
        "o_proj.weight": (hidden, heads * value),
    }


def _prefixed(prefix: str, shapes: Shapes) -> Shapes:
    return {prefix + name: shape for name, shape in shapes.items()}


def _draw(shapes: Shapes, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes.items():
        if name.endswith("bias"):
            mean, std = 0.0, 0.1
        elif len(shape) == 1:  # a norm
            mean, std = 1.0, 0.2
        else:
            mean, std = 0.0, shape[-1] ** -0.5
        weights[name] = generator.normal(mean, std, shape).astype(np.float32)
    return weights


def _save(
    weights: dict[str, npt.NDArray[np.float32]], directory: Path, config: dict[str, Any]
) -> Path:
    directory.mkdir(parents=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)  # for servers of other users
    (directory / "config.json").write_text(json.dumps(config))
    _write_tokenizer(directory)
    return directory


def _write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of the words `<t0>`, `<t1>`, ...: SGLang builds one for Kimi."""
    words = {f"<t{index}>": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<t0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {"bos_token": "<t1>", "eos_token": "<t2>", "pad_token": "<t0>", "unk_token": "<t0>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | special
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
