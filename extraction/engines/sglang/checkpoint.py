"""What the command needs of a checkpoint: how many layers, and which element type."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from extraction.engines.engine import resolve_layers
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A local model directory."""

    path: Path
    num_layers: int
    dtype: str | None
    """What its `config.json` says its weights are; None where it says nothing."""


_PARTS_OF_A_HUB_NAME: Final = 2
"""`owner/name`."""


def read_checkpoint(model_dir: Path) -> Checkpoint:
    """Read `config.json`.

    Raises
    ------
    InputError
        No local directory, no readable `config.json`, or no number of layers in it.
    """
    if not model_dir.is_dir():
        fetch = (
            f". A name on the Hugging Face hub has to be fetched first: hf download {model_dir} "
            "--local-dir DIR"
        )
        is_name = not model_dir.is_absolute() and len(model_dir.parts) == _PARTS_OF_A_HUB_NAME
        raise InputError(
            f"{model_dir} is not a directory: MODEL is a checkpoint on this machine"
            + (fetch if is_name else "")
        )
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{model_dir} is not a checkpoint: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    layers = _find(config, "num_hidden_layers")
    if not isinstance(layers, int):
        raise InputError(f"{path} does not say num_hidden_layers, nor does its text_config")
    dtype = _find(config, "dtype") or _find(config, "torch_dtype")
    return Checkpoint(model_dir.absolute(), layers, dtype if isinstance(dtype, str) else None)


def capturable_layers(layers: Sequence[int] | None, num_layers: int) -> tuple[int, ...]:
    """Check the wanted layers, or choose EAGLE-3's; ascending.

    >>> capturable_layers(None, 61)
    (1, 29, 57)

    Raises
    ------
    InputError
        They are not in the model, or the last one is among them.
    """
    resolved = resolve_layers(layers, num_layers)
    if num_layers - 1 in resolved:
        raise InputError(
            f"--layers {','.join(map(str, resolved))}: SGLang cannot capture the output of the last "
            f"layer ({num_layers - 1}); it reads a state where the next layer begins, and dies in "
            f"its first forward. The final state behind that layer and the final norm is always "
            f"captured, as a slot of its own: leave {num_layers - 1} out"
        )
    return resolved


def _find(config: Any, key: str) -> Any:  # noqa: ANN401  # any JSON value
    """Look at the top and, for models with a vision tower such as Kimi-K2.5, in the text model."""
    text = config.get("text_config")
    return config.get(key, text.get(key) if isinstance(text, dict) else None)
