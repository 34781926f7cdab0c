"""The seal of a store: hashes over its metadata.

Every chunk of Zarr carries a crc32c, but nothing protects the `zarr.json` files, and a flipped
digit there gives every number another meaning. They are written once, so they are hashed once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import xxhash

from hsstore.spec import Seal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hsstore.spec import StoreSpec


def seal(spec: StoreSpec, root: Path) -> StoreSpec:
    """Return the attributes with the seal set, after all arrays have been declared."""
    arrays = {
        path.parent.name: _hash(path.read_bytes())
        for path in sorted(root.glob("*/zarr.json"))
        if path.parent.name != "runs"
    }
    unsealed = spec.model_copy(update={"seal": Seal(arrays=arrays)})
    attributes = attributes_hash(unsealed.model_dump(mode="json"))
    return spec.model_copy(update={"seal": Seal(arrays=arrays, attributes=attributes)})


def attributes_hash(attributes: Mapping[str, Any]) -> str:
    """Hash the attributes as they stand in JSON, but for `seal.attributes` itself."""
    document = {**attributes, "seal": {"arrays": attributes["seal"]["arrays"]}}
    return _hash(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def damaged_arrays(spec: StoreSpec, root: Path) -> dict[str, str]:
    """Return, by name, what is wrong with the `zarr.json` of each damaged array."""
    problems = {}
    for name, expected in spec.seal.arrays.items():
        try:
            found = _hash((root / name / "zarr.json").read_bytes())
        except OSError as error:
            problems[name] = f"{name}/zarr.json cannot be read: {error.strerror}"
        else:
            if found != expected:
                problems[name] = f"{name}/zarr.json has changed since the store was created"
    return problems


def _hash(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)
