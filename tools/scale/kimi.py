"""Plans with the layout of Kimi-K2.5's states, for any number of samples and at any width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hsstore.create import LayoutOptions
from hsstore.dataset import TokenizedDataset
from hsstore.layout import choose_geometry
from hsstore.spec import Model, Norm

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.layout import Geometry

    Int64s = npt.NDArray[np.int64]

SLOTS, HIDDEN, ITEMSIZE = 4, 7168, 2
"""Three layers and the final state, bfloat16: 57,344 bytes a token."""
ROW_BYTES = SLOTS * HIDDEN * ITEMSIZE
LAYERS, NUM_LAYERS = (1, 29, 57), 61
VOCABULARY = 163_840
CAPTURE_HASH = "0" * 64
EPSILON = 1e-6


def narrow_model(hidden: int) -> Model:
    """Describe the model as it would be at another width."""
    return Model(
        id="synthetic",
        capture_hash=CAPTURE_HASH,
        num_layers=NUM_LAYERS,
        hidden=hidden,
        layers=LAYERS,
        final="post-norm",
        norm=Norm(epsilon=EPSILON),
        dtype="bfloat16",
    )


def full_geometry(length: Int64s) -> Geometry:
    """Choose sizes as a store at full width does."""
    return choose_geometry(length, slots=SLOTS, hidden=HIDDEN, itemsize=ITEMSIZE)


def full_layout(length: Int64s) -> LayoutOptions:
    """Return options that give a narrower store the blocks, shards and spans of the full width."""
    sizes = full_geometry(length)
    return LayoutOptions(sizes.chunk_rows, sizes.shard_rows, sizes.span_samples)


def chat_lengths(samples: int, tokens: int, longest: int = 32_768) -> Int64s:
    """Draw lengths as those of chats: log-normal, many short ones and few very long ones.

    Parameters
    ----------
    tokens : int
        Of all samples together, exactly.
    """
    drawn = np.random.default_rng(0).lognormal(0.0, 0.9, samples)
    low, high = 0.0, 4.0 * tokens / drawn.sum()
    for _ in range(60):  # the scale at which they add up, in spite of both ends
        scale = (low + high) / 2
        too_many = _clip(drawn * scale, longest).sum() > tokens
        low, high = (low, scale) if too_many else (scale, high)
    length = _clip(drawn * low, longest)
    missing = tokens - int(length.sum())
    length[np.flatnonzero(length < longest)[:missing]] += 1
    return length


def _clip(values: npt.NDArray[np.float64], longest: int) -> Int64s:
    return np.clip(values, 16, longest).astype(np.int64)


def make_dataset(length: Int64s) -> TokenizedDataset:
    """Make up samples of given lengths: their ids count up, a third of their tokens is not supervised."""
    rng = np.random.default_rng(1)
    samples, tokens = len(length), int(length.sum())
    sample_id = np.zeros((samples, 16), np.uint8)
    numbers = np.arange(samples)
    for place in range(15, 5, -1):
        sample_id[:, place] = ord("0") + numbers % 10
        numbers //= 10
    sample_id[:, :6] = np.frombuffer(b"chat-0", np.uint8)
    ids = rng.integers(0, VOCABULARY, tokens, dtype=np.int32)
    mask = np.ones(tokens, np.uint8)
    mask[: tokens // 3] = 0
    none = np.zeros(samples, np.uint8)
    return TokenizedDataset(
        length, ids, mask, sample_id, none, ("train",), none[:0], np.zeros(samples, np.int64)
    )
