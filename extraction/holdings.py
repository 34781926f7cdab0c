"""What lies in the servers' spools because of us: dumps that are kept, and the bytes charged for them.

A sample's bytes are charged to the budget of one server's spool before it is asked for there, until
its dump is given back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from extraction.spool import RequestId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from extraction.block_sink import OpenBlock
    from extraction.lane import Lane
    from extraction.stages import StageTable


class Placed(NamedTuple):
    """A request, and the server that it is for."""

    lane: Lane
    rid: RequestId


class Holdings:
    """The dumps of one run, by sample.

    Parameters
    ----------
    samples : int
        In the store's plan.
    open_blocks : dict
        Blocks that are being filled, by index: what they hold may be given back early.
    """

    def __init__(
        self, samples: int, open_blocks: Mapping[int, OpenBlock], stages: StageTable
    ) -> None:
        self._open_blocks = open_blocks
        self._stages = stages
        self._charges: dict[int, tuple[Lane, int]] = {}
        self._salvaged: dict[int, Placed] = {}
        self._begun = np.zeros(samples, dtype=np.bool_)

    # --- charges ------------------------------------------------------------------------------

    def charge(self, sample: int, lane: Lane, nbytes: int) -> None:
        """Take note of bytes that were taken from a lane's budget for a sample."""
        self._charges[sample] = lane, nbytes

    def discharge(self, sample: int) -> None:
        """Give a sample's bytes back to its lane's budget, if it has any."""
        charge = self._charges.pop(sample, None)
        if charge is not None:
            lane, nbytes = charge
            lane.budget.release(nbytes)

    def give_back(self, open_block: OpenBlock, sample: int) -> None:
        """Let the server that made an appended sample's dump have its memory."""
        rid = open_block.held.pop(sample)
        self._stages.leave("give-back", rid)
        self._charges[sample][0].spool.give_back(rid)
        self.discharge(sample)

    def relieve(self, lane: Lane, missing_bytes: int) -> int:
        """Free memory of a lane's spool: else a block that is larger could never be filled.

        Dumps of open blocks that are appended go first, oldest first: a SIGKILL now costs asking
        again for these samples, never more. Salvaged dumps go when nothing else can.

        Returns
        -------
        int
            Bytes that are still missing; 0 or less: none are.
        """
        for open_block in self._open_blocks.values():
            for sample in list(open_block.held):
                if missing_bytes <= 0:
                    return missing_bytes
                holder, nbytes = self._charges[sample]
                if holder is lane:
                    missing_bytes -= nbytes
                    self.give_back(open_block, sample)
        salvaged = [sample for sample, placed in self._salvaged.items() if placed.lane is lane]
        while missing_bytes > 0 and salvaged and not lane.bound:
            missing_bytes -= self._throw_away(salvaged.pop())
        return missing_bytes

    def blocks_of(self, lane: Lane) -> list[OpenBlock]:
        """Return the open blocks that all of a lane's dumps are appended to; none before they are."""
        samples = {sample for sample, (holder, _) in self._charges.items() if holder is lane}
        blocks = [one for one in self._open_blocks.values() if not samples.isdisjoint(one.held)]
        return blocks if samples <= {sample for one in blocks for sample in one.held} else []

    def at_risk(self) -> list[int]:
        """Return the samples that a kill now would have asked for again, in order."""
        asked = map(RequestId.parse, self._stages.items("request"))
        samples = {rid.sample for rid in asked if rid is not None}
        for block in self._open_blocks.values():
            samples |= block.appended - block.held.keys()
        return sorted(samples)

    # --- dumps of dead runs -------------------------------------------------------------------

    def adopt(self, lane: Lane) -> list[int]:
        """Use what dead runs left in a lane's spool instead of asking for it again.

        Its bytes are in the lane's budget already. What is asked for by now, or lies in another
        spool too, is removed.

        Returns
        -------
        list of int
            The samples.
        """
        lane.budget.relieve = partial(self.relieve, lane)
        for sample, rid in lane.salvaged.items():
            nbytes = lane.dump_bytes(rid.rows)
            if self._begun[sample] or sample in self._salvaged:
                lane.spool.discard(rid)
                lane.budget.release(nbytes)
            else:
                self._salvaged[sample] = Placed(lane, rid)
                self.charge(sample, lane, nbytes)
        return [sample for sample, placed in self._salvaged.items() if placed.lane is lane]

    def is_salvaged(self, sample: int) -> bool:
        """Tell whether a dead run's dump of a sample is there."""
        return sample in self._salvaged

    def begin(self, sample: int) -> Placed | None:
        """Take note that a sample is asked for from now on; return its salvaged dump, if any."""
        self._begun[sample] = True
        # Out of `_salvaged`: what a task is about to use, `relieve` must not remove.
        return self._salvaged.pop(sample, None)

    def forget(self, lane: Lane | None = None) -> None:
        """Remove what dead runs left, of one lane or of all, and nobody has begun with."""
        for sample, placed in list(self._salvaged.items()):
            if lane in {None, placed.lane}:
                self._throw_away(sample)

    def _throw_away(self, sample: int) -> int:
        lane, rid = self._salvaged.pop(sample)
        nbytes = self._charges[sample][1]
        lane.spool.discard(rid)
        self.discharge(sample)
        return nbytes
