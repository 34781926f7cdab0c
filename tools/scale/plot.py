"""The picture of docs/performance.md: how time and memory grow with the samples of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("agg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

LINES = {
    "create": ("create", "#555555"),
    "first_sample": ("extract, to its first sample", "#d1495b"),
    "resume": ("resume scan", "#edae49"),
    "plan": ("plan", "#66a182"),
    "open": ("open, and one sample", "#00798c"),
}
COMMIT = "#2e4057"


def plot(sizes: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw both panels: seconds, and peak memory."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    samples = [figures["samples"] for figures in sizes.values()]
    for name, (label, colour) in LINES.items():
        seconds = [figures[name]["seconds"] for figures in sizes.values()]
        left.plot(samples, seconds, "o-", color=colour, label=label, markersize=4)
        if name != "resume":  # a part of what extract does
            memory = [figures[name]["peak_mb"] for figures in sizes.values()]
            right.plot(samples, memory, "o-", color=colour, markersize=4)
    commits = [figures["commit_ms"] / 1e3 for figures in sizes.values()]
    left.plot(samples, commits, "o-", color=COMMIT, label="one commit", markersize=4)
    _finish(left, "seconds", "Time")
    _finish(right, "MB, largest resident size", "Memory")
    left.axhline(1, color="#bbbbbb", linewidth=0.8, linestyle=":")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _finish(axes: Axes, unit: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel="samples in the store", ylabel=unit)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(which="major", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
