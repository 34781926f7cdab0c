"""Stores with states as a model has them, a checkpoint to go with them, and the commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from typer.testing import CliRunner

from hsstore.cli.app import app
from hsstore.create import LayoutOptions, create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.export import Options, export_store
from hsstore.formats.norm import apply_norm
from hsstore.report import DOCUMENTS
from hsstore.spec import Model, Norm
from hsstore.store import Store
from hsstore.testing.finite import commit_states

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    import numpy.typing as npt
    from typer.testing import Result

    from hsstore.export.export import Trainer
    from hsstore.spec import FailureReason, FinalState

    Progress = Callable[[int, int], None]

HIDDEN, NUM_LAYERS, VOCABULARY = 32, 6, 300
LAYERS = (0, 2, 3)
LAYERS_GIVEN = "0,2,3"
LENGTHS = (3, 4, 5, 2, 18, 3, 9, 4, 4, 2, 7, 3, 2)
"""With shards of 32 rows and spans of 6 samples there are five blocks and three spans."""
SMALL = LayoutOptions(chunk_rows=4, shard_rows=32, span_samples=6)
SMALL_GIVEN = ("--chunk-rows", "4", "--shard-rows", "32", "--span-samples", "6")
NORM = Norm(epsilon=1e-5)
WEIGHT = np.linspace(0.5, 1.5, HIDDEN).astype(ml_dtypes.bfloat16).astype(np.float32)


def make_checkpoint(path: Path, *, tied: bool = True) -> Path:
    """Write the two files of a model that anything here looks at."""
    path.mkdir()
    generator = np.random.default_rng(0)
    weights = {
        "model.norm.weight": WEIGHT.astype(ml_dtypes.bfloat16),
        "model.layers.0.input_layernorm.weight": np.ones(HIDDEN, ml_dtypes.bfloat16),
        "model.embed_tokens.weight": generator.normal(size=(VOCABULARY, HIDDEN)).astype(
            ml_dtypes.bfloat16
        ),
    }
    if not tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    save_file(weights, path / "model.safetensors")
    config = {
        "model_type": "llama",
        "num_hidden_layers": NUM_LAYERS,
        "hidden_size": HIDDEN,
        "rms_norm_eps": NORM.epsilon,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": tied,
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


def make_model(final: FinalState = "post-norm", layers: tuple[int, ...] = LAYERS) -> Model:
    """Describe the model of the checkpoint."""
    return Model(
        id="test/model",
        capture_hash="0123",
        num_layers=NUM_LAYERS,
        hidden=HIDDEN,
        layers=layers,
        final=final,
        norm=NORM,
        dtype="bfloat16",
    )


def make_plan(lengths: Collection[int] = LENGTHS) -> TokenizedDataset:
    """Make samples with ids, masks and two splits; two of the longest tokens stay unused."""
    return TokenizedDataset.from_samples(_sample(index, one) for index, one in enumerate(lengths))


def _sample(index: int, tokens: int) -> TokenizedSample:
    generator = np.random.default_rng(index)
    return TokenizedSample(
        sample_id=f"chat/{index}/ä",
        input_ids=generator.integers(1, VOCABULARY, tokens, dtype=np.int32),
        loss_mask=generator.integers(0, 2, tokens, dtype=np.uint8),
        split="test" if index % 5 == 4 else "train",
    )


def make_empty(
    path: Path, final: FinalState = "post-norm", layers: tuple[int, ...] = LAYERS
) -> Store:
    """Create a store without states."""
    model = make_model(final, layers)
    return create_store(path, make_plan(), model, norm_weight=WEIGHT, options=SMALL)


def make_filled(
    path: Path,
    final: FinalState = "post-norm",
    *,
    pending: Collection[int] = (),
    failed: dict[int, FailureReason] | None = None,
    layers: tuple[int, ...] = LAYERS,
) -> Store:
    """Create a store with the states of most samples."""
    store = make_empty(path, final, layers)
    out = {*pending, *(failed or {})}
    states = {sample: states_of(store, sample) for sample in range(len(store)) if sample not in out}
    commit_states(store, states, failed)
    return store


def states_of(store: Store, sample: int) -> npt.NDArray[np.uint16]:
    """Return the bits that a sample has in these stores: the last slot is one behind its norm, if it should."""
    model = store.spec.model
    shape = (int(store.length[sample]), model.slots, HIDDEN)
    values = 3 * np.random.default_rng([sample, 1]).normal(size=shape)
    states = values.astype(ml_dtypes.bfloat16)
    if model.final == "post-norm":
        states[:, -1] = apply_norm(states[:, -1], NORM, WEIGHT)
    bits: npt.NDArray[np.uint16] = states.view(np.uint16)
    return bits


class Library:
    """Filled stores and exports of them, each made once. None of them is to be changed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def store(self, final: FinalState = "post-norm") -> Store:
        """Give a store that is complete."""
        path = self._root / f"{final}.zarr"
        return Store.open(path) if path.exists() else make_filled(path, final)

    def copy(self, trainer: Trainer, directory: Path, final: FinalState = "post-norm") -> Path:
        """Give a copy of the export of such a store, which may be changed."""
        path = self._root / f"{trainer}-{final}"
        if not path.exists():
            export_store(self.store(final).path, path, Options(trainer))
        return Path(shutil.copytree(path, directory))


def without_record(directory: Path) -> Path:
    """Make an export look like the work of somebody else."""
    (directory / "hsstore-export.json").unlink()
    return directory


def run(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    import hsstore.cli  # noqa: F401, PLC0415  # registers the commands

    return CliRunner().invoke(app, [*map(str, arguments)])


def document(result: Result, name: str) -> dict[str, Any]:
    """Return what --json printed, after a look at its schema."""
    report: dict[str, Any] = json.loads(result.stdout)
    schema = DOCUMENTS[name].model_json_schema(mode="serialization")
    jsonschema.validate(report, schema)  # type: ignore[no-untyped-call]
    return report


def stop_after(count: int) -> Callable[[str], AbstractContextManager[Progress]]:
    """Make a bar that is interrupted, as by Ctrl-C, when so many of the things that are counted are done."""
    from contextlib import contextmanager  # noqa: PLC0415

    @contextmanager
    def bars(what: str) -> Iterator[Progress]:
        def progress(done: int, _total: int) -> None:
            if what == "samples" and done >= count:
                raise KeyboardInterrupt

        yield progress

    return bars
