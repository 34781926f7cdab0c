"""The seal of a store: hashes over its metadata.

Every chunk of Zarr carries a crc32c, but nothing protects the `zarr.json` files, and a flipped
digit there gives every number another meaning. They are written once, so they are hashed once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import ValidationError

from hsstore.errors import CorruptStoreError, InputError
from hsstore.spec import FORMAT, Seal, StoreSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hsstore.location import Location


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


def unseal(root: Location, attributes: Any) -> StoreSpec:  # noqa: ANN401  # any JSON
    """Read the attributes of a store, as its zarr.json has them.

    Raises
    ------
    InputError
        They are of no store, or of a format that this version does not know.
    CorruptStoreError
        They are not valid, or not those that were sealed.
    """
    if not isinstance(attributes, dict):
        raise InputError(f"{root}: a Zarr group, but not an hsstore store")
    if attributes.get("format") != FORMAT:
        raise InputError(
            f"{root}: format {attributes.get('format')!r}; this version reads {FORMAT!r}"
        )
    try:
        spec = StoreSpec.model_validate(attributes)
    except ValidationError as error:
        raise CorruptStoreError(f"{root}: attributes are not valid: {error}") from None
    if attributes_hash(spec.model_dump(mode="json")) != spec.seal.attributes:
        raise CorruptStoreError(
            f"{root}: the attributes have changed since the store was created; restore its "
            "zarr.json from a copy, or create the store anew"
        )
    return spec


def damaged_arrays(spec: StoreSpec, root: Location) -> dict[str, str]:
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
