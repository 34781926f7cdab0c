"""Write the two ends of a model as a safetensors file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt


def write_checkpoint(
    directory: Path, embedding: npt.NDArray[np.uint16], norm: npt.NDArray[np.float32]
) -> Path:
    """Write tied embeddings, as raw bfloat16 bits, and the weight of the final norm."""
    directory.mkdir(parents=True)
    tensors: dict[str, tuple[str, npt.NDArray[Any]]] = {
        "model.embed_tokens.weight": ("BF16", embedding),
        "model.norm.weight": ("F32", norm),
    }
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, values) in tensors.items():
        offsets = [at, at + values.nbytes]
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": offsets}
        at += values.nbytes
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())
    (directory / "config.json").write_text('{"tie_word_embeddings": true}')
    return directory
