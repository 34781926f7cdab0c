"""Lets an unmodified SGLang run on an x86 CPU with nothing but torch, through its own plugin seam.

For tests: no `sgl_kernel`, no Triton, no graphs; every operator takes its plain torch form.
"""

from __future__ import annotations

from typing import Any

_PLATFORM = "hsstore_test_platform.cpu.PlainCpuPlatform"
_library: object = None
"""Keeps the operators of `_declare_torchvision` alive."""


def activate() -> str | None:
    """Entry point `sglang.srt.platforms`: name the platform, or None where there is a GPU."""
    import torch

    if torch.cuda.is_available():
        return None
    make_torchvision_importable()
    return _PLATFORM


def make_torchvision_importable() -> None:
    """Declare two operators that torchvision's own CUDA extension brings.

    The torchvision of PyPI cannot load that extension beside a CPU torch, and its Python code fails
    to register for operators that nobody declared.
    """
    global _library  # noqa: PLW0603  # a library that is collected takes its operators with it
    import torch

    if _library is not None:
        return
    make: Any = torch.library.Library  # it has no types
    library = make("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        try:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:
            continue  # a torchvision that works has defined it
    _library = library
