"""A model that is a formula: its states depend on the tokens up to them, as a real one's do.

Auxiliary states hold the embedding of their token, that of the one before, and what stands for the
context; the final state points at the next token, behind a norm. Nothing is computed that a test could not check.
"""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from hsstore.create import Golden, LayoutOptions, create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.spec import Model, Norm
from hsstore.writer import BlockWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.store import Store

    Floats = npt.NDArray[np.float32]
    Bits = npt.NDArray[np.uint16]

VOCABULARY, HIDDEN, LAYERS = 512, 64, (1, 3)
EPSILON = 1e-5
PROMPT = tuple(range(100, 120))
"""The shared beginning of all samples."""
LAYOUT = LayoutOptions(chunk_rows=64, shard_rows=1024, span_samples=16)


def bits_of(values: npt.NDArray[Any]) -> Bits:
    """Round to bfloat16."""
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def floats_of(bits: Bits) -> Floats:
    """Return the numbers behind raw bits."""
    return np.asarray(bits.view(ml_dtypes.bfloat16).astype(np.float32))


@dataclass(frozen=True)
class Formula:
    """A model.

    Parameters
    ----------
    seed : int
        Another one is another checkpoint.
    """

    seed: int = 0

    @property
    def embedding(self) -> Floats:
        """(VOCABULARY, HIDDEN), rounded as a checkpoint has it."""
        values = np.random.default_rng(7).normal(size=(VOCABULARY, HIDDEN)) / 4
        return floats_of(bits_of(values))

    @property
    def norm_weight(self) -> Floats:
        """(HIDDEN,)."""
        return floats_of(bits_of(np.random.default_rng(8).uniform(0.5, 2, HIDDEN)))

    def norm(self, states: Floats) -> Floats:
        """Apply the final norm."""
        size = np.sqrt(np.square(states).mean(axis=-1, keepdims=True) + EPSILON)
        return np.asarray(states / size * self.norm_weight)

    def states(self, ids: Sequence[int]) -> Floats:
        """Return the states of some tokens before the final norm, (T, 3, HIDDEN)."""
        embedding, tokens = self.embedding, np.asarray(ids)
        mix = [
            np.random.default_rng([self.seed, 9, layer]).normal(size=(2, HIDDEN, HIDDEN)) / 8
            for layer in LAYERS
        ]
        before = np.concatenate([tokens[:1], tokens[:-1]])
        after = np.concatenate([tokens[1:], [next_token(int(tokens[-1]))]])
        context = self._context(tokens)
        auxiliary = [
            embedding[tokens] @ own * 8 + embedding[before] @ other * 2.8 + context[:, at]
            for at, (own, other) in enumerate(mix)
        ]
        final = embedding[after] * 3.2 / self.norm_weight + context[:, -1] * 0.6
        return np.stack([*auxiliary, final], axis=1).astype(np.float32)

    def _context(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return numbers that depend on all tokens up to each row, (T, 3, HIDDEN)."""
        hashes, value = [], self.seed
        for token in tokens.tolist():
            value = zlib.crc32(token.to_bytes(4, "little"), value)
            hashes.append(value)
        return np.stack([np.random.default_rng(h).normal(size=(3, HIDDEN)) for h in hashes])

    def capture(self, ids: Sequence[int]) -> Bits:
        """Return the states as a store holds them, (T, 3, HIDDEN)."""
        return _capture(self, tuple(ids)).copy()

    def describe(self, **changes: Any) -> Model:
        """Describe it, as a server does."""
        fields = {
            "id": "formula",
            "capture_hash": "0123",
            "num_layers": 4,
            "hidden": HIDDEN,
            "layers": LAYERS,
            "final": "post-norm",
            "norm": Norm(epsilon=EPSILON),
            "dtype": "bfloat16",
        }
        return Model.model_validate(fields | changes)


@cache
def _capture(formula: Formula, ids: tuple[int, ...]) -> Bits:
    states = formula.states(ids)
    states[:, -1] = formula.norm(states[:, -1])
    return bits_of(states)


def next_token(token: int) -> int:
    """Return what usually follows a token."""
    return (token * 5 + 3) % VOCABULARY


def text(seed: int, tokens: int) -> list[int]:
    """Return the shared beginning and a text that a formula predicts in part."""
    generator = np.random.default_rng(seed)
    ids = list(PROMPT)
    while len(ids) < tokens:
        usual = generator.random() < 0.5
        ids.append(next_token(ids[-1]) if usual else int(generator.integers(VOCABULARY)))
    return ids[:tokens]


def write_checkpoint(
    directory: Path,
    tensors: Mapping[str, tuple[str, npt.NDArray[Any]]],
    name: str = "model.safetensors",
) -> Path:
    """Write a safetensors file from element types and raw values."""
    directory.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for key, (dtype, values) in tensors.items():
        size = values.nbytes
        header[key] = {"dtype": dtype, "shape": values.shape, "data_offsets": [at, at + size]}
        at += size
    text_ = json.dumps(header).encode()
    with (directory / name).open("wb") as file:
        file.write(len(text_).to_bytes(8, "little") + text_)
        for _, values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())
    return directory


def formula_checkpoint(directory: Path, formula: Formula | None = None) -> Path:
    """Write the checkpoint of a formula, with tied embeddings."""
    formula = formula or Formula()
    tensors = {
        "model.embed_tokens.weight": ("BF16", bits_of(formula.embedding)),
        "model.norm.weight": ("BF16", bits_of(formula.norm_weight)),
    }
    write_checkpoint(directory, tensors)
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    return directory


def make_store(
    path: Path,
    texts: Sequence[Sequence[int]],
    states: Sequence[Bits],
    *,
    model: Model | None = None,
    golden: Golden | None = None,
    complete: Sequence[int] | None = None,
) -> Store:
    """Make a store of texts and states; all complete, or only some."""
    dataset = TokenizedDataset.from_samples(
        TokenizedSample(
            sample_id=f"text-{at}",
            input_ids=np.array(ids, np.int32),
            loss_mask=np.ones(len(ids), np.uint8),
            split="train",
            metadata={},
        )
        for at, ids in enumerate(texts)
    )
    formula = Formula()
    store = create_store(
        path,
        dataset,
        model or formula.describe(),
        norm_weight=formula.norm_weight,
        options=LAYOUT,
        golden=golden,
    )
    wanted = set(range(len(texts)) if complete is None else complete)
    with ThreadPoolExecutor(1) as encoders:
        for index in range(store.layout.blocks):
            block = store.layout.block(index)
            writer = BlockWriter(
                path, store.layout, store.codec, block, run="run", encoders=encoders
            )
            for sample in block.samples:
                if sample in wanted:
                    writer.append(sample, np.ascontiguousarray(states[sample]))
            store.commit(writer, {}, lambda: None)
    return store
