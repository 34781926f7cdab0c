"""A store of a formula's states, and its checkpoint."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.semantic.synthetic import Formula, formula_checkpoint, make_store, text

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES, TOKENS = 48, 160


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give an empty directory in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def texts() -> list[list[int]]:
    """Give texts of about 160 tokens, with the same beginning."""
    return [text(seed, TOKENS - seed % 2) for seed in range(SAMPLES)]


@pytest.fixture(scope="session")
def checkpoint() -> Iterator[Path]:
    """Give the checkpoint of the formula."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield formula_checkpoint(Path(path) / "model")


@pytest.fixture(scope="session")
def healthy(texts: list[list[int]]) -> Iterator[Path]:
    """Give a store whose states are all right. Not to be changed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        states = [Formula().capture(ids) for ids in texts]
        yield make_store(Path(path) / "store.zarr", texts, states).path
