"""What happens behind each forward: its rows are matched to requests and handed to the recorder."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from extraction.spool import ErrorReason
from hsstore_sglang.slices import pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from extraction.spool import SpoolWriter
    from hsstore_sglang.recorder import Recorder
    from hsstore_sglang.sglang_types import ForwardBatch, RunnerOutput
    from hsstore_sglang.slices import Piece
    from hsstore_sglang.staging import Shape

logger = logging.getLogger(__name__)


class ForwardHook:
    """Called by the thread that computes. Never raises, never waits for a file."""

    def __init__(self, spool: SpoolWriter, recorder: Recorder, shape: Shape) -> None:
        self._spool = spool
        self._recorder = recorder
        self._shape = shape
        self._distrust = ""

    def after(self, output: RunnerOutput, batch: ForwardBatch) -> None:
        """Queue a copy of the rows that are asked for; everything else is ignored cheaply."""
        try:
            if batch.rids and _computes_prompts(batch):
                self._record(output, batch)
        except Exception as error:  # an exception would kill the scheduler
            logger.exception("hsstore: a forward was not captured")
            self._give_up_all(batch, repr(error))
        self._recorder.forward_ended()

    def distrust(self, reason: str) -> None:
        """Capture nothing from now on: requests end with this reason."""
        self._distrust = reason

    def _record(self, output: RunnerOutput, batch: ForwardBatch) -> None:
        pieces = pieces_of(
            batch.rids or (),
            batch.extend_seq_lens_cpu,
            batch.extend_prefix_lens_cpu,
            self._spool.wanted,
        )
        if not pieces:
            return
        logits = output.logits_output
        aux, final, ids = logits.hidden_states, logits.last_hidden_states, batch.input_ids
        if self._distrust or aux is None or final is None:
            problem = self._distrust or "the engine kept no hidden states of this forward"
        else:
            problem = self._find_problem(pieces, aux, final, ids)
            if not problem:
                self._recorder.record(pieces, aux, final, ids)
                return
        self._recorder.give_up([piece.rid for piece in pieces], ErrorReason.ENGINE, problem)

    def _find_problem(
        self, pieces: Sequence[Piece], aux: torch.Tensor, final: torch.Tensor, ids: torch.Tensor
    ) -> str:
        """Say why these tensors are not what was announced; empty where they are."""
        shape = self._shape
        rows = max(piece.offset + piece.rows for piece in pieces)
        widths = {"aux": ((shape.slots - 1) * shape.hidden,), "final": (shape.hidden,), "ids": ()}
        for (name, width), tensor in zip(widths.items(), (aux, final, ids), strict=True):
            if tuple(tensor.shape[1:]) != width or len(tensor) < rows:
                return f"{name} has shape {tuple(tensor.shape)}, expected at least {(rows, *width)}"
        if {aux.dtype, final.dtype} != {shape.dtype}:
            return f"states are {aux.dtype} and {final.dtype}, announced was {shape.dtype}"
        return ""

    def _give_up_all(self, batch: ForwardBatch, detail: str) -> None:
        """End every request of ours in this batch, whatever else is wrong with it."""
        try:
            rids = [rid for rid in batch.rids or () if self._spool.wanted(rid)]
            self._recorder.give_up(rids, ErrorReason.ENGINE, detail)
        except Exception:  # an exception would kill the scheduler
            logger.exception("hsstore: captures ended without a trace")


def _computes_prompts(batch: ForwardBatch) -> bool:
    return batch.forward_mode.is_extend() and not batch.forward_mode.is_target_verify()
