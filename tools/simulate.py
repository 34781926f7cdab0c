"""Simulate a run before there is one: which stage limits, hours, spool, stalls, and what to add.

    python tools/simulate.py docs/scale/kimi.toml --what-if
    python tools/simulate.py --set servers.per_worker=2 --set output.gb_per_second=1 --json
    python tools/simulate.py docs/scale/kimi.toml --plot kimi.png

A discrete-event simulation of servers, spool, encoders, output and workers, as hsstore works; nothing is
sent or written. A scenario is a TOML file, described by `tools/simulation/scenario.py`; single values
are set with `--set`. What it does not say was measured: `tools/simulation/calibration.json`, or the
benchmarks' results, with `--bench build/bench.json`. docs/scale.md has examples, and what is not modelled.
Needs `pip install --group bench`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.errors import InputError, OutputError
from tools.simulation.answer import answer
from tools.simulation.calibration import COMMITTED, calibrate, fill_in, read_calibration
from tools.simulation.scenario import load_scenario
from tools.simulation.simulate import simulate
from tools.simulation.text import lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.simulation.answer import Answer
    from tools.simulation.simulate import Outcome


def main(arguments: list[str] | None = None) -> int:
    """Simulate, print; return the exit code."""
    try:
        run(parser().parse_args(arguments))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return OutputError.exit_code
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("scenario", type=Path, nargs="?", help="TOML file [default: Kimi-K2.5 on one server]")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="one setting; repeatable")
    add("--what-if", action="store_true", help="simulate again, with one more of everything")
    add("--json", action="store_true", help="print one JSON document")
    add("--plot", type=Path, metavar="PNG", help="draw the run there")
    figures = found.add_mutually_exclusive_group()
    figures.add_argument("--calibration", type=Path, default=COMMITTED, help="measured figures")
    figures.add_argument("--bench", type=Path, help="take them from the benchmarks' results")
    add("--save-calibration", type=Path, metavar="JSON", help="write the figures there, and end")
    return found


def run(options: argparse.Namespace) -> None:
    """Do what the command line says."""
    figures = calibrate(options.bench) if options.bench else read_calibration(options.calibration)
    if options.save_calibration:
        options.save_calibration.write_text(figures.model_dump_json(indent=1) + "\n")
        return
    scenario = fill_in(load_scenario(options.scenario, options.set), figures)
    plot = load_plot() if options.plot else None  # what is missing is said before minutes of work
    outcome = simulate(scenario)
    found = answer(outcome, figures, what_if=options.what_if)
    print(found.model_dump_json(indent=1) if options.json else "\n".join(lines(found)), flush=True)
    if plot:
        plot(outcome, found, options.plot)


def load_plot() -> Callable[[Outcome, Answer, Path], None]:
    """Import what draws.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    try:
        from tools.simulation.plot import plot  # noqa: PLC0415  # matplotlib, which few need
    except ImportError as error:
        raise InputError(f"--plot: {error}; pip install --group bench") from error
    return plot


if __name__ == "__main__":
    sys.exit(main())
