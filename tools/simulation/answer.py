"""What a simulated run answers: which stage limits, hours, spool and memory, stalls, what to add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hsstore.errors import InputError
from hsstore.spec import Record
from tools.simulation.calibration import Calibration
from tools.simulation.scenario import Scenario
from tools.simulation.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.simulation.recorder import Series
    from tools.simulation.scenario import Stall
    from tools.simulation.simulate import Outcome

LOOKS_BEFORE = 30
"""Whose largest value is what was usual before a stall."""


class Stage(Record):
    """One stage of the way."""

    alone_hours: float | None
    """What it would take by itself; None where it depends on the others."""
    utilisation: float
    """Share of the run in which it worked, or of its capacity that was used."""


class StallEffect(Record):
    """What a stall of the output did."""

    at_seconds: float
    seconds: float
    idle_after_seconds: float | None
    """From its beginning until the servers had nothing to do; None: they always had."""
    idle_seconds: float
    """Of the servers, from its beginning until as long after its end, on average."""
    recovered_after_seconds: float | None
    """From its end until no more dumps lay unwritten than before; None: not before the next stall, or the end of the run."""


class Change(Record):
    """The same run, with something else."""

    what: str
    hours: float | None
    saved_hours: float | None
    limit: str
    """The stage, or why such a run cannot work; then hours are None."""


class Answer(Record):
    """One document of `tools/simulate.py --json`. Of the whole run, but for what says otherwise."""

    simulated: str
    """Which part of the run was simulated."""
    hours: float
    samples: int
    tokens: int
    tokens_per_second: float
    gb_raw: float
    gb_stored: float
    output_gb_per_second: float
    blocks: int
    shards: int
    spans: int
    limit: str
    """The stage with the highest utilisation."""
    stages: dict[str, Stage]
    idle_hours: dict[str, float]
    """Of an average server, by what its client was at."""
    spool_gb_per_worker: float
    """Largest sum of all charges."""
    unwritten_gb_per_worker: float
    """Of those, asked for and in no shard."""
    landed_gb_per_worker: float
    """Of those, dumps that had come."""
    staged_gb_per_worker: float
    """`object`: encoded, not yet put."""
    early_samples: int
    """Dumps given back before their commit, as the spool was full; of the workers simulated."""
    stalls_cost_seconds: float | None
    """Against the same run without stalls."""
    stalls: tuple[StallEffect, ...]
    changes: tuple[Change, ...]
    scenario: Scenario
    calibration: Calibration


def _twice(value: float) -> float:
    return value * 2


def _half(value: float) -> float:
    return value / 2


def _one_more(value: float) -> float:
    return value + 1


CHANGES: dict[str, tuple[str, str, Callable[[float], float]]] = {
    "one more server a worker": ("servers", "per_worker", _one_more),
    "one more worker": ("workers", "count", _one_more),
    "twice the cores": ("workers", "cores", _twice),
    "twice the output": ("output", "gb_per_second", _twice),
    "half the spool": ("workers", "spool_gb", _half),
    "twice the spool": ("workers", "spool_gb", _twice),
    "twice --max-in-flight": ("workers", "max_in_flight", _twice),
}
"""What to try: part and name of a setting, and what to make of its value."""


def answer(outcome: Outcome, figures: Calibration, *, what_if: bool = False) -> Answer:
    """Work an outcome out; with `what_if`, simulate what could be changed, too.

    Raises
    ------
    InputError
        A stall begins after the end of the run.
    """
    scenario, work, layout = outcome.scenario, outcome.work, outcome.work.layout
    raw_gb = work.all_tokens * scenario.row_bytes / 1e9
    servers = outcome.workers * scenario.servers.per_worker
    cost = _cost_of_stalls(outcome)
    return Answer(
        simulated=_simulated(outcome),
        hours=outcome.seconds / 3600,
        samples=layout.samples,
        tokens=work.all_tokens,
        tokens_per_second=work.all_tokens / outcome.seconds,
        gb_raw=raw_gb,
        gb_stored=raw_gb / (scenario.codec.ratio or 1),
        output_gb_per_second=raw_gb / (scenario.codec.ratio or 1) / outcome.seconds,
        blocks=layout.blocks,
        shards=layout.shards,
        spans=layout.spans,
        limit=limit(outcome),
        stages={
            name: Stage(alone_hours=outcome.alone_hours.get(name), utilisation=used)
            for name, used in outcome.utilisation.items()
        },
        idle_hours={
            why: seconds / servers / 3600
            for why, seconds in sorted(outcome.idle_seconds.items(), key=lambda one: -one[1])
            if seconds
        },
        spool_gb_per_worker=outcome.peak_spool_bytes / outcome.workers / 1e9,
        unwritten_gb_per_worker=outcome.peak_unwritten_bytes / outcome.workers / 1e9,
        landed_gb_per_worker=outcome.peak_landed_bytes / outcome.workers / 1e9,
        staged_gb_per_worker=outcome.peak_staged_bytes / outcome.workers / 1e9,
        early_samples=outcome.early_samples,
        stalls_cost_seconds=cost,
        stalls=tuple(_effects(outcome, servers)),
        changes=tuple(changes(outcome)) if what_if else (),
        scenario=scenario,
        calibration=figures,
    )


def limit(outcome: Outcome) -> str:
    """Name the stage that is used most."""
    return max(outcome.utilisation, key=lambda stage: outcome.utilisation[stage])


def changes(outcome: Outcome) -> list[Change]:
    """Simulate the run again, each time with one thing changed."""
    return [_change(outcome, what, *change) for what, change in CHANGES.items()]


def _change(
    outcome: Outcome, what: str, part: str, name: str, make: Callable[[float], float]
) -> Change:
    settings = getattr(outcome.scenario, part)
    value = getattr(settings, name)
    changed = settings.model_copy(update={name: type(value)(make(value))})
    try:
        other = simulate(outcome.scenario.model_copy(update={part: changed}))
    except InputError as error:
        return Change(what=what, hours=None, saved_hours=None, limit=f"cannot work: {error}")
    hours, saved_hours = other.seconds / 3600, (outcome.seconds - other.seconds) / 3600
    return Change(what=what, hours=hours, saved_hours=saved_hours, limit=limit(other))


def _simulated(outcome: Outcome) -> str:
    count, spans = outcome.scenario.workers.count, outcome.work.layout.spans
    said = f"{outcome.workers} of {count} workers"
    even, more = divmod(spans, count)
    if outcome.workers == count or not more:
        return said
    return f"{said}; each of these has {even + 1} spans, workers from {more} on have {even}"


def _cost_of_stalls(outcome: Outcome) -> float | None:
    stalls = outcome.scenario.stalls
    if not stalls:
        return None
    if stalls[-1].at_seconds > outcome.seconds:
        raise InputError(
            f"stalls: the run is over after {outcome.seconds:,.0f} s, before the one at "
            f"{stalls[-1].at_seconds:,.0f} s"
        )
    return outcome.seconds - simulate(outcome.scenario.model_copy(update={"stalls": ()})).seconds


def _effects(outcome: Outcome, servers: int) -> Iterator[StallEffect]:
    stalls = outcome.scenario.stalls
    following = [*(stall.at_seconds for stall in stalls[1:]), outcome.seconds]
    for stall, until in zip(stalls, following, strict=False):
        yield _effect(stall, until, outcome.series, servers)


def _effect(stall: Stall, following: float, series: Series, servers: int) -> StallEffect:
    """Look at a stall, until the following one begins."""
    begin, end = stall.at_seconds, stall.at_seconds + stall.seconds
    before = [look for look, now in enumerate(series.seconds) if now <= begin][-LOOKS_BEFORE:]
    usual = max((series.landed_bytes[look] for look in before), default=0.0)
    idle_after, idle, recovered = None, 0.0, None
    for look in range(1, len(series.seconds)):
        earlier, now = series.seconds[look - 1], series.seconds[look]
        if not begin < now <= following:
            continue
        busy = (series.busy_seconds[look] - series.busy_seconds[look - 1]) / servers
        if now <= end + stall.seconds:
            idle += now - earlier - busy
            if idle_after is None and busy < (now - earlier) / 2:
                idle_after = now - begin
        if recovered is None and now > end and series.landed_bytes[look] <= usual:
            recovered = now - end
    return StallEffect(
        at_seconds=begin,
        seconds=stall.seconds,
        idle_after_seconds=idle_after,
        idle_seconds=max(0.0, idle),
        recovered_after_seconds=recovered,
    )
