"""Spoil a copy of a store: what is stored as layers of token t are those of token t+1.

    python tools/eagle3/shifted.py states.zarr shifted.zarr

A trainer then sees the answer in its input. To be shown, not used: see docs/eagle3.md.
"""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hsstore.store import Store
from hsstore.writer import BlockWriter

if TYPE_CHECKING:
    import numpy.typing as npt


def main() -> int:
    """Copy a store and shift its rows."""
    source, target = map(Path, sys.argv[1:])
    shutil.copytree(source, target)
    shift(Store.open(source), Store.open(target))
    return 0


def shift(source: Store, target: Store) -> None:
    """Write all complete samples anew, the captured layers one row early; the final state stays."""
    complete = np.flatnonzero(source.completion().complete)
    target.withdraw(complete)
    with ThreadPoolExecutor(1) as encoders:
        for number in range(target.layout.blocks):
            block = target.layout.block(number)
            writer = BlockWriter(
                target.path, target.layout, target.codec, block, run="shifted", encoders=encoders
            )
            for sample in np.intersect1d(complete, np.asarray(block.samples)).tolist():
                writer.append(sample, shifted(source.states(sample).view(source.bits)))
            target.commit(writer, {}, lambda: None)


def shifted(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Move all slots but the last one row up, of states (T, slots, hidden); the last row is kept."""
    moved = np.array(bits)
    moved[:-1, :-1] = bits[1:, :-1]
    return moved


if __name__ == "__main__":
    sys.exit(main())
