"""The processor of the tiny Kimi-K2.5: text only, with the one attribute that SGLang reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer

_MEDIA = {
    "patch_size": 14,
    "merge_kernel_size": 2,
    "in_patch_limit": 16384,
    "patch_limit_on_one_side": 512,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}


class TinyKimiProcessor:
    """Stands where Kimi's own processor stands in a checkpoint of it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.media_processor = SimpleNamespace(media_proc_cfg=_MEDIA)
        self.image_processor = self.media_processor

    @classmethod
    def from_pretrained(cls, path: str, **_: Any) -> TinyKimiProcessor:
        """Load it, as transformers does."""
        return cls(AutoTokenizer.from_pretrained(path))

    @classmethod
    def register_for_auto_class(cls, *_: Any, **__: Any) -> None:
        """Do nothing: transformers asks for it."""
