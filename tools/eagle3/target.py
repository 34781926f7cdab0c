"""The target model as decoding needs it: tokens in, next tokens and captured layers out, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from extraction.engines.decoding import cache_name
from extraction.engines.transformers_model import stop_token_ids

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class TargetModel:
    """A model of transformers.

    Parameters
    ----------
    layers : ints
        0-based decoder layers whose outputs the head is given.
    """

    def __init__(self, model_dir: Path, layers: Sequence[int]) -> None:
        disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, local_files_only=True
        )
        self._layers = layers
        self._cache_name = cache_name(self._model)
        self.ends = stop_token_ids(self._model)

    @property
    def embeddings(self) -> torch.Tensor:
        """[vocabulary, H]: of its inputs."""
        weight: torch.Tensor = self._model.get_input_embeddings().weight.detach()
        return weight

    @property
    def output_rows(self) -> torch.Tensor:
        """[vocabulary, H]: of its head."""
        weight: torch.Tensor = self._model.get_output_embeddings().weight.detach()
        return weight

    def begin(self) -> transformers.DynamicCache:
        """Return an empty cache."""
        return transformers.DynamicCache()

    @torch.inference_mode()
    def read(
        self, tokens: Sequence[int], cache: transformers.DynamicCache
    ) -> tuple[list[int], torch.Tensor]:
        """Append tokens to the cache.

        Returns
        -------
        next tokens : ints
            The most likely one behind each.
        aux : tensor [tokens, layers * H]
        """
        given = {self._cache_name: cache, "use_cache": True, "output_hidden_states": True}
        out = self._model(input_ids=torch.tensor([tokens]), **given)
        aux = torch.cat([out.hidden_states[layer + 1][0] for layer in self._layers], -1)
        return out.logits[0].argmax(-1).tolist(), aux
