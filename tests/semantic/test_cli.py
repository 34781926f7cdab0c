"""`hsstore verify --semantic`, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
from typing_extensions import override

from hsstore.store import Store
from tests.semantic.synthetic import Formula, formula_checkpoint, make_store

if TYPE_CHECKING:
    import numpy.typing as npt

SCHEMA = Path(__file__).parents[2] / "schemas/verify.schema.json"


def _verify(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hsstore", "verify", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_good_store_is_ok_and_the_report_fits_its_schema(healthy: Path, checkpoint: Path) -> None:
    done = _verify(healthy, "--semantic", checkpoint, "--json", "--workers", 1)

    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(report, json.loads(SCHEMA.read_text()))  # type: ignore[no-untyped-call]
    assert report["semantic"]["ok"]
    assert report["semantic"]["samples"] == report["checked"]


def test_a_swapped_sample_is_shown_and_ends_with_1(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [Formula().capture(ids) for ids in texts]
    states[4], states[6] = states[6], states[4]
    store = make_store(directory / "store.zarr", texts, states)

    done = _verify(store.path, "--semantic", checkpoint, "--workers", 1, "--repair")

    assert done.returncode == 1
    assert "--repair clears no bits for what --semantic found" in done.stdout
    assert Store.open(store.path).completion().complete.all()
    lines = [line for line in done.stdout.splitlines() if "wrong-tokens" in line]
    assert [line.split()[:2] for line in lines] == [["4", "text-4"], ["6", "text-6"]]
    assert "semantic: 2 bad: 48 samples" in done.stdout
    assert "as bytes ok: 48 of 48 samples checked" in done.stdout  # they are what was committed


def test_only_the_chosen_samples_are_judged(healthy: Path, checkpoint: Path) -> None:
    done = _verify(healthy, "--semantic", checkpoint, "--sample", 5, "--seed", 3, "--json")

    report: dict[str, Any] = json.loads(done.stdout)
    assert report["checked"] == report["semantic"]["samples"] == 5
    assert report["sampling"]["seed"] == report["semantic"]["seed"] == 3


def test_another_model_is_refused_and_a_place_without_one_is_wrong_input(
    healthy: Path, directory: Path
) -> None:
    other = formula_checkpoint(directory / "other", _Louder())

    refused = _verify(healthy, "--semantic", other)
    missing = _verify(healthy, "--semantic", directory / "nowhere")

    assert refused.returncode == 3
    assert "is another model than the store's" in refused.stderr
    assert missing.returncode == 2
    assert "no safetensors files" in missing.stderr


class _Louder(Formula):
    """A model with another final norm."""

    @property
    @override
    def norm_weight(self) -> npt.NDArray[np.float32]:
        return np.asarray(super().norm_weight * 2, np.float32)
