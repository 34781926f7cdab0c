"""What is asked of SGLang itself, beside the objects that hooks are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hsstore_sglang.sglang_types import Arguments, ModelRunner


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where a process stands in its server."""

    writes: bool
    """Whether its rows go to the spool: other attention-TP ranks hold the same ones."""
    writer: int
    """Which of the writing processes it is; 0 owns the spool."""


def ranks() -> Ranks:
    """Tell which process this is, after SGLang has built its process groups."""
    from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - only inside SGLang

    parallel = get_parallel()
    # Attention groups within one server, or whole replicas of it: SGLang never has both.
    in_groups = parallel.attn_dp_size > 1
    return Ranks(
        writes=parallel.attn_tp_rank == 0 and parallel.pp_rank == 0 and parallel.attn_cp_rank == 0,
        writer=int((parallel.attn_dp_rank if in_groups else parallel.dp_rank) or 0),
    )


def arguments(runner: ModelRunner) -> Arguments:
    """Return the server's arguments as SGLang has resolved them, read-only."""
    from sglang.srt.arg_groups.model_override_base import resolved_view  # noqa: PLC0415

    return resolved_view(runner.server_args)
