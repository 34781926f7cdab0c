"""The simulation against closed forms: single queues, and whole runs with one limit each."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import simpy

from hsstore.errors import InputError
from hsstore.layout import choose_geometry, plan_layout
from hsstore.writer import LOOKAHEAD_CHUNKS
from tools.simulate import main
from tools.simulation.answer import answer
from tools.simulation.calibration import calibrate, fill_in, read_calibration
from tools.simulation.queues import Line, Shared
from tools.simulation.scenario import load_scenario
from tools.simulation.simulate import simulate
from tools.simulation.work import draw_lengths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.simulation.queues import Steps
    from tools.simulation.simulate import Outcome

FIGURES = read_calibration()
SAMPLES, TOKENS = 500, 2_000
FAST = ("workers.start_seconds=0", "workers.request_seconds=0", "output.gb_per_second=100")
"""Only what a test names takes time; servers take 0.2 s a sample."""


def run(*settings: str) -> Outcome:
    usual = (f"data.samples={SAMPLES}", f"data.tokens_mean={TOKENS}", *FAST)
    return simulate(fill_in(load_scenario(None, [*usual, *settings]), FIGURES))


@pytest.fixture
def even(tmp_path: Path) -> str:
    """Give samples of one length."""
    path = tmp_path / "lengths.npy"
    np.save(path, np.full(SAMPLES, TOKENS))
    return f'data.lengths_file="{path}"'


# --- single queues --------------------------------------------------------------------------------


def mean_wait(
    queue: Callable[[simpy.Environment], Callable[[float], simpy.Event]],
    service: Callable[[], float],
    load: float,
) -> float:
    """Return the mean time from arrival to done, of Poisson arrivals; services last 1 on average."""
    rng, env, spent = np.random.default_rng(1), simpy.Environment(), list[float]()
    serve = queue(env)

    def customer() -> Steps:
        came = env.now
        yield serve(service())
        spent.append(env.now - came)

    def arrivals() -> Steps:
        for _ in range(15_000):
            yield env.timeout(rng.exponential(1 / load))
            env.process(customer())

    env.process(arrivals())
    env.run()
    return float(np.mean(spent))


def test_a_line_waits_as_long_as_m_d_1_says() -> None:
    load = 0.7
    expected = 1 + load / (2 * (1 - load))
    assert mean_wait(lambda env: Line(env).serve, lambda: 1.0, load) == pytest.approx(
        expected, rel=0.1
    )


def test_shared_capacity_takes_as_long_as_processor_sharing_says() -> None:
    rng, load = np.random.default_rng(2), 0.6
    spent = mean_wait(lambda env: Shared(env, 1.0).work, partial(rng.exponential, 1.0), load)
    assert spent == pytest.approx(1 / (1 - load), rel=0.1)


def test_no_job_gets_more_than_its_most_and_others_get_what_it_leaves() -> None:
    env = simpy.Environment()
    shared = Shared(env, 10.0)
    slow, fast = shared.work(10, most=2), shared.work(80)
    env.run(until=slow)
    assert env.now == pytest.approx(5)
    env.run(until=fast)
    assert env.now == pytest.approx(9)  # 40 beside the slow one, 40 alone
    assert shared.moved_until_now() == pytest.approx(90)


def test_what_stands_still_goes_on_where_it_was() -> None:
    env = simpy.Environment()
    shared = Shared(env, 1.0)
    done = shared.work(10)
    env.run(until=4)
    shared.set_capacity(0)
    env.run(until=100)
    shared.set_capacity(2)
    env.run(until=done)
    assert env.now == pytest.approx(103)


# --- runs with one limit --------------------------------------------------------------------------


def test_a_server_bound_run_takes_tokens_over_rate() -> None:
    outcome = run("workers.start_seconds=7")
    tokens = outcome.work.tokens
    assert tokens == pytest.approx(SAMPLES * TOKENS, rel=0.01)
    assert outcome.seconds == pytest.approx(7 + tokens / 10_000, rel=0.01)
    assert answer(outcome, FIGURES).limit == "servers"


def test_servers_of_one_worker_share_the_work() -> None:
    outcome = run("servers.per_worker=3")
    assert outcome.seconds == pytest.approx(outcome.work.tokens / 30_000, rel=0.03)


def test_an_output_bound_run_takes_stored_bytes_over_rate() -> None:
    outcome = run("output.gb_per_second=0.2", "codec.ratio=1.25")
    assert outcome.seconds == pytest.approx(outcome.bytes_raw / 1.25 / 0.2e9, rel=0.01)
    assert outcome.series.output_bytes[-1] == pytest.approx(outcome.bytes_raw / 1.25, rel=1e-6)
    assert answer(outcome, FIGURES).limit == "output"


def test_two_workers_on_one_disk_have_the_disk_of_one() -> None:
    outcome = run("output.gb_per_second=0.2", "workers.count=2", "workers.span_samples=50")
    assert outcome.seconds == pytest.approx(outcome.bytes_stored / 0.2e9, rel=0.01)


def test_an_encoder_bound_run_takes_raw_bytes_over_cores() -> None:
    fast = ("servers.prefill_tokens_per_second=1e6", "servers.hand_over_gb_per_second=1000")
    slow = (
        *fast,
        "codec.encode_gb_per_second_per_core=0.1",
        "codec.check_gb_per_second_per_core=9",
    )
    outcome = run(*slow, "workers.cores=4")
    assert outcome.seconds == pytest.approx(outcome.bytes_raw / 0.4e9, rel=0.05)
    # More chunks than these are not encoded at once, however many cores there are.
    outcome = run(*slow, "workers.cores=64")
    most = 0.1e9 * (LOOKAHEAD_CHUNKS + 1)
    assert outcome.seconds == pytest.approx(outcome.bytes_raw / most, rel=0.05)


def test_a_commit_bound_run_takes_its_commits_one_after_the_other() -> None:
    outcome = run("output.commit_seconds=5")
    blocks = outcome.work.layout.blocks
    assert outcome.commits == blocks
    assert outcome.seconds == pytest.approx(5 * blocks, rel=0.05)
    assert answer(outcome, FIGURES).limit == "commits"


def test_puts_of_an_object_store_take_their_latency_and_overlap() -> None:
    slow = ('output.kind="object"', "output.put_seconds=2")
    one, four = run(*slow), run(*slow, "output.uploads_at_once=4")
    assert one.seconds == pytest.approx(4 * 2 * one.commits, rel=0.05)  # a shard, three small ones
    assert four.seconds == pytest.approx(one.seconds / 4, rel=0.1)


def test_the_network_of_a_worker_limits_it() -> None:
    outcome = run(
        'output.kind="object"', "output.put_seconds=0", "output.gb_per_second_per_worker=0.2"
    )
    assert outcome.seconds == pytest.approx(outcome.bytes_stored / 0.2e9, rel=0.03)
    assert outcome.peak_staged_bytes < 20e9


# --- stalls ---------------------------------------------------------------------------------------


def cost_of_stall(seconds: float, *settings: str) -> float:
    stall = f"stalls=[{{at_seconds=40, seconds={seconds}}}]"
    return run(*settings, stall).seconds - run(*settings).seconds


def test_a_short_stall_costs_nothing_and_a_longer_one_what_it_is_longer(even: str) -> None:
    """What is asked for and not written is twice --max-in-flight, up to a block more."""
    disk = (even, "output.gb_per_second=2")
    least, block = 2 * 32 * 0.2, 9 * 0.2
    assert cost_of_stall(least - 3, *disk) == pytest.approx(0, abs=0.5)
    assert 60 - least - block - 1 <= cost_of_stall(60, *disk) <= 60 - least + 1
    more = cost_of_stall(60, *disk) - cost_of_stall(60, *disk, "workers.max_in_flight=64")
    assert more == pytest.approx(least, abs=2)


def test_a_small_spool_bears_no_longer_stall_than_it_holds(even: str) -> None:
    """Thirty samples of 115 MB."""
    cost = cost_of_stall(60, even, "output.gb_per_second=2", "workers.spool_gb=3.45")
    assert cost == pytest.approx(60 - 30 * 0.2, abs=1.5)


def test_the_effect_of_each_stall_is_told(even: str) -> None:
    stalls = "stalls=[{at_seconds=20, seconds=5}, {at_seconds=50, seconds=30}]"
    found = answer(run(even, "output.gb_per_second=2", stalls), FIGURES)
    short, long = found.stalls
    assert short.idle_after_seconds is None
    assert short.recovered_after_seconds is not None
    assert long.idle_after_seconds == pytest.approx(13, abs=2)
    assert found.stalls_cost_seconds == pytest.approx(long.idle_seconds, abs=1)


# --- what hsstore does ----------------------------------------------------------------------------


def test_blocks_are_those_of_a_store_and_all_are_committed() -> None:
    outcome = run()
    length = draw_lengths(outcome.scenario.data, 0)
    layout = plan_layout(length, choose_geometry(length, slots=4, hidden=7168, itemsize=2))
    assert (outcome.commits, outcome.work.layout.shards) == (layout.blocks, layout.shards)
    assert outcome.series.tokens[-1] == length.sum()


def test_a_spool_smaller_than_a_block_gives_dumps_back_before_their_commit() -> None:
    outcome = run("workers.spool_gb=0.6", "workers.memory_gb=0.6", "data.tokens_longest=8000")
    assert outcome.peak_spool_bytes <= 0.6e9
    assert outcome.early_samples > 0
    assert outcome.series.tokens[-1] == outcome.work.tokens
    assert run().early_samples == 0


def test_some_of_many_workers_are_as_all_of_them() -> None:
    many = ("workers.count=10", "workers.span_samples=50", "output.gb_per_second=1.5")
    some, all_of_them = run(*many, "simulated_workers=5"), run(*many, "simulated_workers=10")
    assert (some.workers, all_of_them.workers) == (5, 10)
    assert some.seconds == pytest.approx(all_of_them.seconds, rel=0.1)  # each has a few blocks
    assert all_of_them.work.tokens == some.work.all_tokens


def test_the_same_seed_gives_the_same_run() -> None:
    few = "data.samples=60"
    assert run(few).series == run(few).series
    assert run(few, "seed=1").series != run(few).series


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "data.samples=30", "--set", "servers.per_worker=2", "--what-if", "--json"]
    assert main(settings) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 30
    assert found["scenario"]["servers"]["per_worker"] == 2
    assert {change["what"] for change in found["changes"]} >= {
        "one more worker",
        "twice the output",
    }
    assert main([*settings[:-1], "--set", "workers.spool_gb=0.6"]) == 0
    out = capsys.readouterr().out
    assert "<- limits" in out
    assert "half the spool             cannot work: the dump of the longest sample" in out
    assert main([*settings[:2], "--save-calibration", "/nowhere/calibration.json"]) == 74


def test_what_draws_is_looked_for_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "tools.simulation.plot", raising=False)
    monkeypatch.setattr("tools.simulate.simulate", lambda _: pytest.fail("simulated"))
    assert main(["--set", "data.samples=30", "--plot", "run.png"]) == 2
    assert "pip install --group bench" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["servers.gpus=8"], "servers.gpus: is no setting of a scenario"),
        (["servers.per_worker=0"], "servers.per_worker: Input should be greater"),
        (["output.kind=tape"], "output.kind"),
        (["workers.spool_gb=1"], "32,768 tokens, takes 1.8"),
        (["workers.count=300"], "a span has one"),
        (["data.tokens_median=9000"], "tokens_median is above tokens_mean"),
        (
            ["stalls=[{at_seconds=9, seconds=9}, {at_seconds=10, seconds=1}]"],
            "must follow one another",
        ),
        (["servers"], "NAME=VALUE"),
        (["data.lengths_file=/nowhere.npy"], "/nowhere.npy: no lengths"),
        (["data.samples=9", "stalls=[{at_seconds=900, seconds=1}]"], "before the one at 900 s"),
    ],
)
def test_a_wrong_scenario_is_refused_by_name(
    settings: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part for setting in settings for part in ("--set", setting)]) == 2
    assert said in capsys.readouterr().err


def test_figures_come_from_the_benchmarks_with_commit_and_command(tmp_path: Path) -> None:
    about = {"commit": "abc", "command": "python tools/b.py", "machine": {"cpu": "x", "cores": 2}}
    size = {"commit_ms": 20.0, "first_sample": {"seconds": 4.0}}
    results: dict[str, Any] = {
        "codec": {"fast": {"ratio": 1.5, "encode_gbs": 0.5}, "about": about},
        "scale": {"sizes": {"100000": size}, "about": about},
        "kimi": {"extract_seconds": 100.0, "samples": 1000, "about": about},
    }
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(results))
    figures = calibrate(path)
    assert figures.commit_seconds.value == pytest.approx(0.02)
    assert figures.request_seconds.value == pytest.approx(0.1)
    assert figures.ratio.commit == "abc"
    del results["kimi"]
    path.write_text(json.dumps(results))
    with pytest.raises(InputError, match="kimi"):
        calibrate(path)
    with pytest.raises(InputError, match="make bench"):
        calibrate(tmp_path / "none.json")
