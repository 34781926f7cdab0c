"""The capture hash: equal only where the captured numbers must be equal.

Standard library only: the plugin inside an inference server computes the same hash.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096

_IRRELEVANT: Final = {
    "_name_or_path",
    "bos_token_id",
    "dtype",  # the resolved one counts
    "eos_token_id",
    "initializer_range",
    "pad_token_id",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
"""Keys of config.json that do not change a forward."""


def capture_hash(
    model_dir: Path,
    *,
    layers: Sequence[int],
    final: str,
    dtype: str,
    compute_dtype: str,
    changes: Mapping[str, Any] | None = None,
) -> str:
    """Hash all that decides the numbers, to 64 hex digits (SHA-256).

    Of each weight file: its name, its size, its safetensors header, and 64 samples of 4 KiB at fixed
    places, since fine-tuned models share their headers. Of config.json: all that changes a forward,
    quantisation included. To read all weights would take longer than to load them.

    Parameters
    ----------
    model_dir
        Checkpoint directory with `config.json` and weight files.
    layers
        Resolved 0-based layers, ascending.
    final
        `post-norm`, `pre-norm` or `none`.
    dtype
        Of the captured states.
    compute_dtype
        What the model computes in.
    changes
        What else decides the numbers, beside the checkpoint: how a server quantises it, for example.
    """
    content: dict[str, Any] = {
        "config": _relevant(json.loads((model_dir / "config.json").read_bytes())),
        "weights": {path.name: _weight_digest(path) for path in _weight_files(model_dir)},
        "layers": list(layers),
        "final": final,
        "dtype": dtype,
        "compute_dtype": compute_dtype,
    }
    if changes:  # hashes without any stay what they were
        content["changes"] = dict(changes)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _weight_files(model_dir: Path) -> Iterator[Path]:
    for pattern in ("*.safetensors", "*.bin"):
        yield from sorted(model_dir.glob(pattern))


def _relevant(config: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(config, dict):
        return {key: _relevant(value) for key, value in config.items() if key not in _IRRELEVANT}
    return config


def _weight_digest(path: Path) -> str:
    size_bytes = path.stat().st_size
    digest = hashlib.sha256(str(size_bytes).encode())
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            digest.update(file.read(int.from_bytes(file.read(8), "little")))
        for sample in range(_SAMPLES):
            file.seek(sample * max(0, size_bytes - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
