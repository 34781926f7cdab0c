"""The pictures of docs/scale.md: a run over its time, and how much each stage was used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

mpl.use("agg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tools.simulation.answer import Answer
    from tools.simulation.simulate import Outcome

    Floats = npt.NDArray[np.float64]

POINTS = 240
SPOOL, LANDED, OUTPUT, BUSY, STALL = "#00798c", "#66a182", "#2e4057", "#edae49", "#d1495b"


def plot(outcome: Outcome, answer: Answer, path: Path) -> None:
    """Draw the run, or the time around its stalls, and the stages."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = plt.figure(figsize=(10.5, 5), layout="constrained")
    grid = figure.add_gridspec(3, 2, width_ratios=(2.2, 1))
    _draw_series(figure, [figure.add_subplot(grid[row, 0]) for row in range(3)], outcome)
    _draw_stages(figure.add_subplot(grid[:, 1]), answer)
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)


def _draw_series(figure: Figure, panels: list[Axes], outcome: Outcome) -> None:
    series, workers = outcome.series, outcome.workers
    begin, end = _window(outcome)
    grid = np.linspace(begin, end, POINTS + 1)
    spool, rate, busy = panels
    unit, seconds = ("hours", 3600) if end - begin > 7200 else ("seconds", 1)
    at = grid / seconds

    def values(name: str) -> Floats:
        found: Floats = np.interp(grid, series.seconds, getattr(series, name))
        return found

    def rates(name: str) -> Floats:
        found: Floats = np.diff(values(name)) / np.diff(grid)
        return found

    spool.fill_between(at, values("spool_bytes") / workers / 1e9, color=SPOOL, alpha=0.35, lw=0)
    spool.plot(at, values("spool_bytes") / workers / 1e9, color=SPOOL, label="charged")
    spool.plot(at, values("landed_bytes") / workers / 1e9, color=LANDED, label="dumps, unwritten")
    spool.margins(y=0.35)
    spool.legend(frameon=False, ncols=2, loc="upper right")
    _finish(spool, "GB", "Spool of a worker")
    share = workers / outcome.scenario.workers.count
    rate.stairs(rates("output_bytes") / share / 1e9, at, color=OUTPUT, baseline=None)
    _finish(rate, "GB/s", "Taken by the output, all workers")
    servers = workers * outcome.scenario.servers.per_worker
    busy.stairs(100 * rates("busy_seconds") / servers, at, color=BUSY, baseline=None)
    busy.set(ylim=(0, 105), xlabel=f"{unit} since the start")
    _finish(busy, "%", "Servers busy")
    for panel in panels:
        panel.set_xlim(at[0], at[-1])
        for stall in outcome.scenario.stalls:
            stop = stall.at_seconds + stall.seconds
            panel.axvspan(stall.at_seconds / seconds, stop / seconds, color=STALL, alpha=0.12, lw=0)
    figure.align_ylabels(panels)


def _window(outcome: Outcome) -> tuple[float, float]:
    stalls = outcome.scenario.stalls
    if not stalls:
        return 0.0, outcome.seconds
    first, last = stalls[0], stalls[-1]
    end = last.at_seconds + 1.6 * last.seconds
    return max(0.0, first.at_seconds - 0.3 * last.seconds), min(end, outcome.seconds)


def _draw_stages(axes: Axes, answer: Answer) -> None:
    names = list(answer.stages)[::-1]
    used = [100 * answer.stages[name].utilisation for name in names]
    colours = [STALL if name == answer.limit else SPOOL for name in names]
    bars = axes.barh(names, used, color=colours, height=0.65)
    axes.bar_label(bars, fmt="%.0f %%", padding=3)
    axes.set(xlim=(0, 118), xlabel="% of the whole run")
    axes.set_title("Stages", loc="left", fontweight="bold")


def _finish(axes: Axes, unit: str, title: str) -> None:
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(which="major", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
