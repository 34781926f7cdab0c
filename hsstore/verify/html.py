"""The report of a verification as one HTML file: no script, nothing loaded from anywhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hsstore.errors import InputError
from hsstore.files import output_errors, write_durably
from hsstore.verify.values import LEAST_OCTAVE

if TYPE_CHECKING:
    from hsstore.location import Location
    from hsstore.report import Coverage, Lengths, SlotNorms, Verification

MAX_ROWS = 1000
"""Findings in a table; a browser gets slow on more."""
MAP_COLUMNS = 60


def check_target(path: Path, store: Location) -> None:
    """Refuse a file that could not be written when all is done, or that would lie in the store.

    Raises
    ------
    InputError
    """
    if isinstance(store, Path) and path.absolute().is_relative_to(store.absolute()):
        raise InputError(f"--html {path}: lies in the store, which verify does not write to")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"--html {path}: not a file in a directory that exists")


def write_html(report: Verification, path: Path) -> None:
    """Write the report.

    Raises
    ------
    OutputError
    """
    with output_errors(path):
        write_durably(path, render(report).encode())


def render(report: Verification) -> str:
    """Return the report as HTML. Its size is bounded, whatever that of the store."""
    environment = Environment(
        loader=PackageLoader("hsstore.verify"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(
        report=report,
        total=sum(count.findings for count in report.kinds),
        listed=report.bad[:MAX_ROWS],
        most=MAX_ROWS,
        cells=_cells(report.coverage) if report.coverage else [],
        columns=MAP_COLUMNS,
        bars=_bars(report.lengths) if report.lengths else [],
        profiles=[_profile(norms) for norms in report.norms],
        octaves=_octaves(report.norms),
    )


def _cells(coverage: Coverage) -> list[dict[str, Any]]:
    """Place the pieces of the coverage map, row by row, and say how full and how bad each is."""
    return [
        {
            "x": number % MAP_COLUMNS,
            "y": number // MAP_COLUMNS,
            "first": number * coverage.samples_a_piece,
            "complete": complete,
            "failed": failed,
            "bad": bad,
            "filled": complete / coverage.samples_a_piece,
        }
        for number, (complete, failed, bad) in enumerate(
            zip(coverage.complete, coverage.failed, coverage.bad, strict=True)
        )
    ]


def _bars(lengths: Lengths) -> list[dict[str, Any]]:
    """Scale the bins of the length histogram to the largest."""
    most = max(lengths.samples)
    return [
        {
            "first": lengths.edges[number],
            "last": lengths.edges[number + 1] - 1,
            "samples": samples,
            "complete": complete,
            "height": samples / most,
            "filled": complete / most,
        }
        for number, (samples, complete) in enumerate(
            zip(lengths.samples, lengths.complete, strict=True)
        )
    ]


def _octaves(norms: tuple[SlotNorms, ...]) -> range:
    """Return the octaves that hold rows, as indices of the histograms."""
    used = [number for slot in norms for number, rows in enumerate(slot.histogram) if rows] or [0]
    return range(min(used), max(used) + 1)


def _profile(norms: SlotNorms) -> dict[str, Any]:
    """Scale the norms of a slot: heights grow with the logarithm, for single rows to be seen."""
    most = math.log1p(max(norms.histogram))
    return {
        "name": f"layer {norms.layer}" if norms.layer is not None else "final state",
        "norms": norms,
        "heights": [math.log1p(rows) / most for rows in norms.histogram],
        "starts": [2.0 ** (LEAST_OCTAVE + number) for number in range(len(norms.histogram))],
    }
