"""docs/dask.md is run as it is written, and its figures are those of plain NumPy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import zarr
from safetensors.numpy import save_file

from hsstore.testing.finite import MIXED_COMPLETE, MIXED_LENGTHS, MIXED_PENDING, make_mixed_store

if TYPE_CHECKING:
    from hsstore.store import Store

DOCUMENT = Path(__file__).parents[2] / "docs" / "dask.md"
VOCABULARY = 50_000
"""More than any token of these stores."""


@pytest.fixture
def store(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Give the store `states.zarr` of the document, and a model beside it."""
    monkeypatch.chdir(directory)
    head = np.random.default_rng(0).normal(size=(VOCABULARY, 16)).astype(ml_dtypes.bfloat16)
    Path("model").mkdir()
    save_file({"model.embed_tokens.weight": head}, "model/model.safetensors")
    return make_mixed_store(directory / "states.zarr")


def run(heading: str) -> dict[str, Any]:
    """Run the Python blocks of a section."""
    text = DOCUMENT.read_text()
    section = text[text.index(f"## {heading}\n") :]
    section = section[: section.find("\n## ") if "\n## " in section else None]
    names: dict[str, Any] = {}
    for match in re.finditer(r"```python\n(.*?)```", section, re.DOTALL):
        exec(compile(match[1], str(DOCUMENT), "exec"), names)
    return names


def states(store: Store) -> Any:
    return [store[i].hidden_states.astype(np.float64) for i in MIXED_COMPLETE]


def test_mean_and_covariance(store: Store) -> None:
    names = run("Mean and covariance of a layer")

    x = np.concatenate(states(store))[:, 0]
    np.testing.assert_allclose(names["mean"], x.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(names["covariance"], np.cov(x.T), rtol=1e-12, atol=1e-14)


def test_the_covariance_stands_a_mean_that_is_large_against_the_deviation(store: Store) -> None:
    names = run("Mean and covariance of a layer")
    generator = np.random.default_rng(0)
    x = (1000 + generator.normal(size=(500, 4))).astype(np.float32)
    parts = [names["moments"](part) for part in np.split(x, [3, 10, 400])]

    count, mean, scatter = (
        names["merge"](names["merge"](parts[0], parts[1]), names["merge"](parts[2], parts[3]))
    ).compute()

    assert count == 500
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scatter / 499, np.cov(x.T.astype(np.float64)), rtol=1e-9, atol=1e-12)


def test_filter_by_loss(store: Store) -> None:
    names = run("Filter by loss")

    head = names["head"].compute().astype(np.float64)
    expected = {}
    for i, x in zip(MIXED_COMPLETE, states(store), strict=True):
        ids, mask = store.input_ids(i), store.loss_mask(i)
        rows = [t for t in range(len(ids) - 1) if mask[t + 1]]
        logits = x[rows, -1] @ head.T
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[range(len(rows)), ids[1:][rows]]
        expected[i] = losses.mean() if rows else np.nan
    np.testing.assert_allclose(
        names["loss"][list(expected)], list(expected.values()), rtol=1e-5, equal_nan=True
    )
    limit = np.nanquantile(list(expected.values()), 0.99)
    kept = [store.sample_id(i) for i, loss in expected.items() if loss < limit]
    assert Path("kept.txt").read_text().splitlines() == kept
    assert 0 < len(kept) < len(MIXED_COMPLETE)


def test_sample_lengths(store: Store) -> None:
    names = run("Sample lengths")

    everything = sum(MIXED_LENGTHS)
    pending = sum(MIXED_LENGTHS[i] for i in MIXED_PENDING)
    supervised = sum(int(store.loss_mask(i).sum()) for i in range(len(store)))
    assert names["by_status"]["pending"] == pending
    assert names["by_split"]["tokens"]["sum"].sum() == everything
    assert names["supervised"] == supervised / everything


def test_norms_that_are_written_along_the_stores_rows(store: Store) -> None:
    run("What is in it")

    written: Any = zarr.open_array("norms.zarr", mode="r")
    for i, x in zip(MIXED_COMPLETE, states(store), strict=True):
        rows = slice(store.layout.row_start[i], store.layout.row_start[i] + len(x))
        np.testing.assert_allclose(written[rows], np.linalg.norm(x, axis=2), rtol=1e-6)
    assert np.isnan(written[:]).any()
