"""An answer, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.simulation.answer import Answer, Change, StallEffect


def lines(answer: Answer) -> list[str]:
    """Say what a run would take."""
    speed = f"{answer.hours:,.2f} hours ({answer.hours * 3600:,.0f} s), {answer.tokens_per_second:,.0f} tokens/s"
    size = f"{answer.gb_raw:,.1f} GB raw, {answer.gb_stored:,.1f} GB stored"
    parts = f"{answer.blocks:,} blocks, {answer.shards:,} shards, {answer.spans:,} spans"
    return [
        f"{answer.scenario.name}: {speed}; simulated: {answer.simulated}",
        f"{answer.samples:,} samples, {answer.tokens:,} tokens: {size}, in {parts}",
        f"to the output: {answer.output_gb_per_second:,.3f} GB/s",
        "",
        *_stages(answer),
        "",
        *_memory(answer),
        *_stalls(answer),
        *_changes(answer),
    ]


def _stages(answer: Answer) -> list[str]:
    found = [f"{'stage':<12} {'hours alone':>12} {'utilisation':>12}"]
    for name, stage in answer.stages.items():
        alone = f"{stage.alone_hours:,.2f}" if stage.alone_hours is not None else ""
        mark = "  <- limits" if name == answer.limit else ""
        found.append(f"{name:<12} {alone:>12} {stage.utilisation:>12.1%}{mark}")
    idle = ", ".join(f"{hours:,.3f} h {why}" for why, hours in answer.idle_hours.items())
    return [*found, f"a server was idle: {idle or 'never'}"]


def _memory(answer: Answer) -> list[str]:
    workers = answer.scenario.workers
    unwritten, landed = answer.unwritten_gb_per_worker, answer.landed_gb_per_worker
    spool = f"spool of a worker: {answer.spool_gb_per_worker:.3g} GB charged at most"
    parts = f"{unwritten:.3g} GB at most were in no shard, {landed:.3g} GB as dumps that had come"
    found = [
        f"{spool} (allowed: {workers.spool_gb:.3g} a server); {parts}",
        f"memory of a worker: {workers.memory_gb:.3g} GB of dumps being checked and encoded",
    ]
    if answer.early_samples:
        found.append(f"{answer.early_samples:,} dumps were given back before their commit")
    if answer.staged_gb_per_worker:
        found.append(f"staged by a worker: {answer.staged_gb_per_worker:.3g} GB at most")
    return found


def _stalls(answer: Answer) -> list[str]:
    if answer.stalls_cost_seconds is None:
        return []
    found = [_stall(stall) for stall in answer.stalls]
    return ["", *found, f"the stalls cost {answer.stalls_cost_seconds:,.1f} s of the run"]


def _stall(stall: StallEffect) -> str:
    if stall.idle_after_seconds is None:
        idle = "the servers did not notice"
    else:
        idle = (
            f"the servers were idle after {stall.idle_after_seconds:,.1f} s, "
            f"for {stall.idle_seconds:,.1f} s"
        )
    caught_up = stall.recovered_after_seconds
    back = (
        "not caught up before the next one, or the end"
        if caught_up is None
        else f"caught up in {caught_up:,.1f} s"
    )
    return f"stall of {stall.seconds:g} s at {stall.at_seconds:,.0f} s: {idle}; {back}"


def _changes(answer: Answer) -> list[str]:
    if not answer.changes:
        return []
    return ["", f"{'with':<26} {'hours':>8} {'saved':>8}  limit", *map(_change, answer.changes)]


def _change(change: Change) -> str:
    if change.hours is None or change.saved_hours is None:
        return f"{change.what:<26} {change.limit}"
    return f"{change.what:<26} {change.hours:>8,.2f} {change.saved_hours:>8,.2f}  {change.limit}"
