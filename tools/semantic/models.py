"""States of the same tokens by other models: another layer, before the norm, disturbed weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from extraction.engines.transformers_model import TransformersEngine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

LAYERS = (1, 14, 26)
NOISES = {"1%": 0.01, "5%": 0.05, "20%": 0.2}
"""Gaussian noise on every matrix of the layers, in deviations of the matrix."""


def other_models(
    model_dir: Path, samples: Sequence[npt.NDArray[np.int32]], cache: Path
) -> list[dict[str, npt.NDArray[np.uint16]]]:
    """Compute, by sample and model, states (T, 4, hidden) as the store would hold them.

    Parameters
    ----------
    cache : Path
        A folder; what is there is not computed again.
    """
    cache.mkdir(parents=True, exist_ok=True)
    content = xxhash.xxh3_64_hexdigest(b"".join(ids.tobytes() for ids in samples))
    found: list[dict[str, npt.NDArray[np.uint16]]] = [{} for _ in samples]
    for name in ("clean", *NOISES, "int8"):
        path = cache / f"{name}-{content}.npz"
        if not path.exists():
            arrays: dict[str, Any] = _run(model_dir, name, samples)
            np.savez(path, **arrays)
        with np.load(path) as arrays:
            for at, states_of in enumerate(found):
                _take(states_of, name, arrays[str(at)])
    return found


def _take(
    found: dict[str, npt.NDArray[np.uint16]], name: str, states: npt.NDArray[np.uint16]
) -> None:
    """Of seven layers and the final state make what a store of three would hold."""
    if name != "clean":
        found[name] = states[:, [0, 2, 4, 7]]
        return
    found["layer+1"] = states[:, [1, 3, 5, 7]]
    found["pre-norm"] = states[:, [0, 2, 4, 6]]


def _run(
    model_dir: Path, name: str, samples: Sequence[npt.NDArray[np.int32]]
) -> dict[str, npt.NDArray[np.uint16]]:
    layers = (*(layer + at for layer in LAYERS for at in (0, 1)), 29)
    engine = TransformersEngine(model_dir, layers=layers, dtype="bfloat16", compute_dtype="float32")
    _disturb(engine, name)
    return {
        str(at): engine.capture(ids, predict=False, progress=lambda: None).hidden
        for at, ids in enumerate(samples)
    }


def _disturb(engine: TransformersEngine, name: str) -> None:
    import torch  # noqa: PLC0415  # takes seconds

    generator = torch.Generator().manual_seed(5)
    for weight in engine._decoder.layers.parameters():  # noqa: SLF001
        if weight.dim() != 2:
            continue
        with torch.no_grad():
            if name in NOISES:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(NOISES[name] * weight.std() * noise)
            elif name == "int8":
                step = weight.abs().amax(dim=1, keepdim=True) / 127
                weight.copy_((weight / step).round() * step)
