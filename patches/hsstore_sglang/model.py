"""Look into a loaded model: its decoder, the layers it captures, its final norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from extraction.spool import Norm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hsstore_sglang.sglang_types import Module

_INNER: Final = ("language_model", "llm", "text_model", "model", "transformer", "backbone")
"""Attributes that lead from a model to its decoder."""
_NORMS: Final = ("norm", "final_layernorm", "ln_f", "norm_f")
_DEPTH: Final = 4
_CLOSE: Final = 0.02
"""Relative difference that bfloat16 explains."""


class UnsupportedError(Exception):
    """What a server that cannot capture is told: why, and what to do."""


def find_decoder(model: Module) -> Module:
    """Find the module that holds the decoder layers and the final norm.

    Raises
    ------
    UnsupportedError
        There is none that hsstore recognises.
    """
    for module in _inner_modules(model, _DEPTH):
        if hasattr(module, "layers") and find_norm(module) is not None:
            return module
    raise UnsupportedError(
        f"{type(model).__name__} has no decoder with layers and a final norm where hsstore looks "
        f"({', '.join(_INNER)})"
    )


def find_norm(decoder: Module) -> Module:
    """Return the final norm's module, or None."""
    norms = (getattr(decoder, name, None) for name in _NORMS)
    return next((norm for norm in norms if hasattr(norm, "weight")), None)


def captured_layers(
    model: Module,
    convention: str,
    asked: Sequence[int] | None,
) -> tuple[int, ...]:
    """Resolve the 0-based layers whose outputs this running model captures, ascending.

    Parameters
    ----------
    convention
        `dflash` or `eagle3`, as `--speculative-algorithm` named it.
    asked
        The ids of `--return-aux-hidden-state-layer-ids`.

    Raises
    ------
    UnsupportedError
        They cannot be told for sure.
    """
    resolved = _layers_to_capture(model)
    outputs = tuple(sorted(layer - 1 for layer in resolved))
    if convention == "dflash" and asked is not None and outputs != tuple(sorted(asked)):
        # A few models keep the ids as they are: some capture before these layers, some behind.
        raise UnsupportedError(
            f"{type(model).__name__} captures {sorted(resolved)} where the outputs of the layers "
            f"{sorted(asked)} were asked for: hsstore cannot tell which outputs these are"
        )
    if not outputs or outputs[0] < 0:
        raise UnsupportedError(
            f"{type(model).__name__} captures before the layers {sorted(resolved)}, and the input "
            "of layer 0 is no layer's output: name the layers, see the flags below"
        )
    return outputs


def describe_norm(norm: Module, hidden: int) -> Norm | None:
    """Describe a final RMSNorm with the weight it multiplies by; None if it is another kind.

    Models store this weight as it is, or less one. What the module computes decides.
    """
    weight, epsilon = norm.weight.detach().float(), _epsilon(norm)
    if epsilon is None or weight.shape != (hidden,) or getattr(norm, "bias", None) is not None:
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, hidden, generator=generator).to(norm.weight.device, norm.weight.dtype)
    with torch.no_grad():
        got = norm(x.clone()).float()
    normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
    for shift in (0.0, 1.0):
        expected = normed * (weight + shift)
        if (got - expected).norm() <= _CLOSE * expected.norm():
            content = (weight + shift).cpu().contiguous().numpy().astype("<f4").tobytes()
            return Norm("rmsnorm", float(epsilon), content)
    return None


def _inner_modules(module: Module, depth: int) -> Iterator[Module]:
    yield module
    for name in _INNER if depth else ():
        inner = getattr(module, name, None)
        if inner is not None:
            yield from _inner_modules(inner, depth - 1)


def _layers_to_capture(model: Module) -> tuple[int, ...]:
    """Return the layers whose input is captured, as the models of SGLang keep them."""
    for module in _inner_modules(model, _DEPTH):
        if layers := getattr(module, "layers_to_capture", None):
            return tuple(int(layer) for layer in layers)
    return ()


def _epsilon(norm: Module) -> float | None:
    values = (getattr(norm, name, None) for name in ("variance_epsilon", "eps"))
    return next((value for value in values if value is not None), None)
