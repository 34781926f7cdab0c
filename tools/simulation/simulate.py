"""Runs one scenario from its first request to its last commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import simpy

from hsstore.writer import LOOKAHEAD_CHUNKS
from tools.simulation.queues import Shared
from tools.simulation.recorder import Recorder
from tools.simulation.work import plan_work, simulated_workers
from tools.simulation.worker import Worker

if TYPE_CHECKING:
    from tools.simulation.queues import Steps
    from tools.simulation.recorder import Series
    from tools.simulation.scenario import Scenario, Stall
    from tools.simulation.work import Work

LOOKS = 1500
"""At a run, about."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulated run was like; bytes and counts are of the workers that were simulated.

    Attributes
    ----------
    alone_hours : dict
        What each stage would take if all others took no time: a closed form.
    utilisation : dict
        By stage, 0 to 1, of the whole run.
    """

    scenario: Scenario
    work: Work
    workers: int
    seconds: float
    bytes_raw: int
    bytes_stored: float
    alone_hours: dict[str, float]
    utilisation: dict[str, float]
    idle_seconds: dict[str, float]
    series: Series
    peak_spool_bytes: int
    peak_unwritten_bytes: int
    peak_landed_bytes: int
    peak_staged_bytes: float
    early_samples: int
    commits: int


def simulate(scenario: Scenario) -> Outcome:
    """Simulate a run.

    Parameters
    ----------
    scenario : Scenario
        One that says everything: see `fill_in`.

    Raises
    ------
    InputError
        It could not work.
    """
    env, work = simpy.Environment(), plan_work(scenario)
    count = simulated_workers(scenario)
    share = count / scenario.workers.count
    capacity = scenario.output.gb_per_second * 1e9 * share
    output = Shared(env, capacity)
    workers = [Worker(env, scenario, output, work.blocks_for(number)) for number in range(count)]
    alone = alone_seconds(scenario, work, count)
    env.process(_stall(env, output, capacity, scenario.stalls))
    look_seconds = max(0.01, max(alone.values()) / LOOKS)
    recorder = Recorder(env, workers, output, scenario.stalls, look_seconds)
    env.run(until=env.all_of([worker.done for worker in workers]))
    recorder.look()
    return _outcome(scenario, work, workers, alone, recorder)


def alone_seconds(scenario: Scenario, work: Work, workers: int) -> dict[str, float]:
    """Return what each stage takes by itself, by closed forms."""
    servers, client, codec, output = (
        scenario.servers,
        scenario.workers,
        scenario.codec,
        scenario.output,
    )
    raw_gb = work.tokens * scenario.row_bytes / 1e9
    stored_gb = raw_gb / (codec.ratio or 1)
    count = workers * servers.per_worker
    alone = {
        "servers": (
            work.tokens / servers.prefill_tokens_per_second + work.samples * servers.request_seconds
        )
        / count,
        "hand-over": raw_gb / (servers.hand_over_gb_per_second or 1e9) / count,
        "event loop": work.samples * (client.request_seconds or 0) / workers,
        "checks": raw_gb
        / (codec.check_gb_per_second_per_core or 1e9)
        / -(-client.cores // 4)
        / workers,
        "encoding": raw_gb
        / (codec.encode_gb_per_second_per_core or 1e9)
        / min(client.cores, LOOKAHEAD_CHUNKS + 1)
        / workers,
        "output": stored_gb / output.gb_per_second * client.count / workers,
    }
    if output.gb_per_second_per_worker:
        alone["network"] = stored_gb / output.gb_per_second_per_worker / workers
    return alone


def _stall(
    env: simpy.Environment, output: Shared, capacity: float, stalls: tuple[Stall, ...]
) -> Steps:
    for stall in stalls:
        yield env.timeout(stall.at_seconds - env.now)
        output.set_capacity(0)
        yield env.timeout(stall.seconds)
        output.set_capacity(capacity)


def _outcome(
    scenario: Scenario,
    work: Work,
    workers: list[Worker],
    alone: dict[str, float],
    recorder: Recorder,
) -> Outcome:
    seconds = recorder.series.seconds[-1]
    threads = len(workers) * workers[0].sink.committers.capacity
    sinks = [worker.sink for worker in workers]
    lanes = [lane for worker in workers for lane in worker.lanes]
    raw = work.tokens * scenario.row_bytes
    utilisation = {stage: value / seconds for stage, value in alone.items()}
    utilisation["servers"] = recorder.series.busy_seconds[-1] / seconds / len(lanes)
    utilisation["output"] *= recorder.series.output_bytes[-1] / (raw / (scenario.codec.ratio or 1))
    utilisation["commits"] = sum(sink.commit_seconds for sink in sinks) / threads / seconds
    return Outcome(
        scenario=scenario,
        work=work,
        workers=len(workers),
        seconds=seconds,
        bytes_raw=raw,
        bytes_stored=raw / (scenario.codec.ratio or 1),
        alone_hours={stage: value / 3600 for stage, value in alone.items()},
        utilisation=utilisation,
        idle_seconds=recorder.idle_seconds,
        series=recorder.series,
        peak_spool_bytes=sum(worker.peak_spool_bytes for worker in workers),
        peak_unwritten_bytes=sum(worker.peak_unwritten_bytes for worker in workers),
        peak_landed_bytes=sum(worker.peak_landed_bytes for worker in workers),
        peak_staged_bytes=sum(sink.peak_staged_bytes for sink in sinks),
        early_samples=sum(worker.early_samples for worker in workers),
        commits=sum(sink.commits for sink in sinks),
    )
