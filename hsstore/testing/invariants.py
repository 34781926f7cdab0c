"""What must be true of a store at any moment. Each function raises AssertionError if it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hsstore.digest import payload_digest
from hsstore.errors import NotExtractedError
from hsstore.testing.stores import payload

if TYPE_CHECKING:
    from hsstore.store import Store


def complete_samples(store: Store) -> set[int]:
    """Return the samples whose bit is set."""
    return set(np.flatnonzero(store.completion().complete).tolist())


def encoded_sample(store: Store, sample: int) -> list[bytes]:
    """Return the encoded chunks of a complete sample, in row and slot order."""
    places = store.layout.chunks_of(sample, int(store.length[sample]))
    return list(store.payload.read_encoded(sample, places))


def check_set_bits_read_back(store: Store) -> None:
    """Every set bit has a payload: bit for bit what was written, and of the digest that is stored."""
    state = store.completion()
    for sample in np.flatnonzero(state.complete).tolist():
        bits = store.payload.read(sample)
        np.testing.assert_array_equal(bits, payload(store, sample), f"sample {sample}")
        _require(payload_digest(bits) == state.digest[sample], f"sample {sample}: digest")


def check_unset_bits_raise(store: Store) -> None:
    """No sample is read without its bit, whatever its shard may hold."""
    for sample in set(range(len(store))) - complete_samples(store):
        try:
            store[sample]
        except NotExtractedError:
            continue
        raise AssertionError(f"sample {sample} is not complete, but was read")


def check_same_data(store: Store, other: Store) -> None:
    """Both stores hold the same plan, digests and encoded chunks; offsets may differ."""
    _require(store.spec.plan_hash == other.spec.plan_hash, "plan hashes differ")
    mine, theirs = store.completion(), other.completion()
    np.testing.assert_array_equal(mine.complete, theirs.complete)
    for sample in complete_samples(store):
        _require(mine.digest[sample] == theirs.digest[sample], f"sample {sample}: digests differ")
        same = encoded_sample(store, sample) == encoded_sample(other, sample)
        _require(same, f"sample {sample}: encoded chunks differ")


def _require(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)
