"""What turns final states into tokens: the output matrix, the embedding and the final norm.

Looked for by name and shape in the checkpoint, so that also the text part of a multimodal one is found. The
norm is the one whose weight the store has: which also proves that the checkpoint is the store's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.errors import InputError, RefusedError
from hsstore.semantic.checkpoint import read_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.semantic.checkpoint import Tensor
    from hsstore.spec import Model

OUTPUTS = ("lm_head.weight", "embed_out.weight", "output.weight")
EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "tok_embeddings.weight",
    "word_embeddings.weight",
)
NORMS = (
    "norm.weight",
    "ln_f.weight",
    "final_layernorm.weight",
    "norm_f.weight",
    "final_norm.weight",
)
STRANGERS = ("vision", "visual", "audio", "mtp", "draft", "eagle", "layers.", "blocks.", ".h.")
"""Parts of a name that belongs to something else than the decoder's two ends."""
NORM_TOLERANCE = 0.01
"""Relative difference (2-norm) of the norm's weight in store and checkpoint: dtypes may differ."""


@dataclass(frozen=True)
class Head:
    """The two ends of a model."""

    output: Tensor
    """(vocabulary, hidden): its row t times a final state is the logit of token t."""
    embedding: Tensor
    """(vocabulary, hidden); the output matrix again where they are tied, or it is missing."""
    norm: str
    """The final norm, in words."""

    @property
    def vocabulary(self) -> int:
        """Tokens that both matrices have."""
        return min(self.output.shape[0], self.embedding.shape[0])


def read_head(model_dir: Path, model: Model, norm_weight: npt.NDArray[np.float32]) -> Head:
    """Find output matrix, embedding and final norm of the model that a store was made with.

    Parameters
    ----------
    norm_weight : float32 (hidden,)
        As the store has it: what the norm multiplies by.

    Raises
    ------
    InputError
        They are not there, or more than one might be it.
    RefusedError
        The checkpoint is another model's, or its norm is no RMSNorm.
    """
    if model.norm.kind != "rmsnorm":
        raise RefusedError(
            f"--semantic knows RMSNorm, with weight w or 1 + w (Gemma); the final norm of this store is "
            f"{model.norm.kind!r}"
        )
    tensors = read_tensors(model_dir)
    hidden = model.hidden
    embedding = _find(tensors, EMBEDDINGS, hidden, 2)
    output = None if _is_tied(model_dir) else _find(tensors, OUTPUTS, hidden, 2)
    output, embedding = output or embedding, embedding or output
    if output is None or embedding is None:
        raise InputError(
            f"{model_dir}: neither an output matrix ({', '.join(OUTPUTS)}) nor an embedding with rows of "
            f"{hidden} numbers"
        )
    norm = _find_norm(model_dir, tensors, norm_weight)
    return Head(output, embedding, norm)


def _is_tied(model_dir: Path) -> bool:
    try:
        config: dict[str, Any] = json.loads((model_dir / "config.json").read_text())
    except (OSError, ValueError):
        return False
    text = config.get("text_config") or {}
    return bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))


def _find(
    tensors: Mapping[str, Tensor], names: tuple[str, ...], hidden: int, axes: int
) -> Tensor | None:
    found = _candidates(tensors, names, hidden, axes)
    if len(found) > 1:
        raise InputError(f"more than one tensor may be it: {', '.join(t.name for t in found)}")
    return found[0] if found else None


def _candidates(
    tensors: Mapping[str, Tensor], names: tuple[str, ...], hidden: int, axes: int
) -> list[Tensor]:
    return [
        tensor
        for name, tensor in tensors.items()
        if any(f".{name}".endswith(f".{end}") for end in names)
        and not any(part in name for part in STRANGERS)
        and len(tensor.shape) == axes
        and tensor.shape[-1] == hidden
    ]


def norm_candidates(tensors: Mapping[str, Tensor], hidden: int) -> list[Tensor]:
    """Return the tensors of a checkpoint that may be the weight of its final norm."""
    return _candidates(tensors, NORMS, hidden, 1)


def _find_norm(
    model_dir: Path, tensors: Mapping[str, Tensor], expected: npt.NDArray[np.float32]
) -> str:
    found = norm_candidates(tensors, len(expected))
    if not found:
        raise InputError(
            f"{model_dir}: no final norm ({', '.join(NORMS)}) of {len(expected)} numbers"
        )
    biased = [t.name for t in found if t.name.removesuffix("weight") + "bias" in tensors]
    if biased:
        raise RefusedError(
            f"{model_dir}: {biased[0]} comes with a bias, as a LayerNorm's does: --semantic knows RMSNorm"
        )
    size = float(np.linalg.norm(expected))
    for tensor in found:
        weight = tensor.vector()
        for shift, words in ((0, "RMSNorm"), (1, "RMSNorm with weight 1 + w")):
            if np.linalg.norm(weight + shift - expected) <= NORM_TOLERANCE * size:
                return words
    raise RefusedError(
        f"{model_dir} is another model than the store's: the weight of its final norm "
        f"({', '.join(t.name for t in found)}) is not the store's norm_weight"
    )
