"""Figures that were measured, each with its benchmark, commit and command.

The committed `calibration.json` is made from the benchmarks' own results with `tools/simulate.py
--bench build/bench.json --save-calibration`. The one figure that those results do not hold comes from
docs/performance.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from hsstore.errors import InputError
from hsstore.spec import Record

if TYPE_CHECKING:
    from tools.simulation.scenario import Scenario

    Document = dict[str, Any]

COMMITTED = Path(__file__).with_name("calibration.json")

Part = TypeVar("Part", bound=Record)


class Figure(Record):
    """One measured figure."""

    value: float
    unit: str
    note: str
    """What it is, and how it follows from what was measured."""
    source: str
    """Keys in the benchmarks' results, or a place in the docs."""
    commit: str
    command: str
    machine: str


class Calibration(Record):
    """All that the simulation takes from measurements."""

    ratio: Figure
    encode_gb_per_second_per_core: Figure
    check_gb_per_second_per_core: Figure
    hand_over_gb_per_second: Figure
    commit_seconds: Figure
    start_seconds: Figure
    request_seconds: Figure


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a figure is in the benchmarks' results: section.key.key, over a second one if given."""

    key: str
    unit: str
    note: str
    factor: float = 1.0
    over: str = ""


_ORIGINS = {
    "ratio": _Origin("codec.fast.ratio", "raw/stored", "SmolLM2-135M's states, --codec fast"),
    "encode_gb_per_second_per_core": _Origin(
        "codec.fast.encode_gbs", "GB/s of raw states", "one thread, of its processor time"
    ),
    "check_gb_per_second_per_core": _Origin(
        "codec.fast.encode_gbs",
        "GB/s of raw states",
        "not measured alone: a check takes a sixth of the time of encoding (extraction/block_sink.py)",
        factor=6.0,
    ),
    "commit_seconds": _Origin(
        "scale.sizes.100000.commit_ms",
        "s",
        "one commit of a store of 100,000 samples: the fsyncs, and a span's completion",
        factor=1e-3,
    ),
    "start_seconds": _Origin(
        "scale.sizes.100000.first_sample.seconds",
        "s",
        "`hsstore extract`, imports included, until a sample is in a shard",
    ),
    "request_seconds": _Origin(
        "kimi.extract_seconds",
        "s a sample",
        "an upper bound: the whole run over its samples, the noise server's work included",
        over="kimi.samples",
    ),
}
_HAND_OVER = Figure(
    value=1.499,
    unit="GB/s of raw states",
    note="the plugin's staging, writer and spool, and a client that reads, without a model; the commit "
    "is that of the docs",
    source="docs/performance.md, Capture: mb_per_second.hand_over",
    commit="fd2b042e1859",
    command="python tools/bench_capture.py --prompts 8 --rows 256 --rounds 5 --stock-rounds 1",
    machine="2 cores",
)


def read_calibration(path: Path = COMMITTED) -> Calibration:
    """Read the figures of a calibration file.

    Raises
    ------
    InputError
    """
    try:
        return Calibration.model_validate_json(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise InputError(f"{path}: no calibration: {error}") from error


def calibrate(results: Path) -> Calibration:
    """Take the figures from results of the benchmarks, such as build/bench.json.

    Raises
    ------
    InputError
        There are none, or one of them is missing.
    """
    try:
        document = json.loads(results.read_text())
    except OSError as error:
        raise InputError(f"{results}: {error.strerror}; `make bench` writes it") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{results}: not JSON: {error}") from error
    try:
        figures = {name: _figure(document, origin) for name, origin in _ORIGINS.items()}
    except (KeyError, TypeError) as error:
        raise InputError(f"{results}: nothing under {error}: run that benchmark") from error
    return Calibration(hand_over_gb_per_second=_HAND_OVER, **figures)


def filled_in(part: Part, figures: Calibration) -> Part:
    """Return a part of a scenario, such as its codec, with what was measured where it says nothing."""
    names = type(part).model_fields.keys() & Calibration.model_fields.keys()
    missing = {name: getattr(figures, name).value for name in names if getattr(part, name) is None}
    return part.model_copy(update=missing)


def fill_in(scenario: Scenario, figures: Calibration) -> Scenario:
    """Return a scenario that says everything."""
    parts = ("servers", "workers", "codec", "output")
    return scenario.model_copy(
        update={name: filled_in(getattr(scenario, name), figures) for name in parts}
    )


def _figure(document: Document, origin: _Origin) -> Figure:
    section = origin.key.partition(".")[0]
    about = document[section]["about"]
    value = _look_up(document, origin.key) * origin.factor
    if origin.over:
        value /= _look_up(document, origin.over)
    return Figure(
        value=value,
        unit=origin.unit,
        note=origin.note,
        source=f"{origin.key} / {origin.over}" if origin.over else origin.key,
        commit=about["commit"],
        command=about["command"],
        machine=f"{about['machine']['cpu']}, {about['machine']['cores']} cores",
    )


def _look_up(document: Document, key: str) -> float:
    found: Any = document
    for name in key.split("."):
        if name not in found:
            raise KeyError(key)
        found = found[name]
    return float(found)
