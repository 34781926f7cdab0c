"""Benchmark: what capture costs a real SGLang on the CPU, in alternating rounds.

    make bench-capture
    python tools/bench_capture.py --quick     # a smoke run, into build/bench-quick.json

The same prompts, all at once, in chunks, each with a cache key of its own, go to one server as

* off: ids that the spool does not know: prefill alone;
* on: ids of a registered client, which opens, reads and gives back every dump, as `hsstore extract`
  does; the clock stops when the last one has been read;
* stock_http: `return_hidden_states`; the clock stops when the last answer is here, as JSON text that
  nobody has parsed. SGLang sends the layers only, not the final state, and of a prompt that came
  in several chunks only the last one: the rows that arrived are counted;

and, while that server idles, to two others with the same model:

* inert: the same command without `HSSTORE_SPOOL`;
* plain: also without the flags that make SGLang keep auxiliary states.

A second model, shallow and 7,168 wide, moves many bytes a second. There `on` is compared with

* hand_over: the plugin's own staging, recorder and spool, and the same client, fed from memory;
* memcpy: one thread copies as many bytes, chunk by chunk, between two warm buffers.

All figures are seconds a round, as medians, smallest and largest; ratios are taken within a round. Only the
ratios mean something on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from extraction.options import ExtractOptions
from extraction.server_link import ServerLink
from extraction.session import open_session
from extraction.spool.dump import dump_bytes
from hsstore.errors import InterruptedRunError
from tools.bench_json import RESULTS, ROOT, about, record
from tools.capture.clients import RUN, Clients
from tools.capture.limit import HandOver, Memcpy
from tools.capture.servers import (
    READY_SECONDS,
    Case,
    environment_of_servers,
    with_plugin,
    without_plugin,
)
from tools.capture.wide_llama import CAPTURED, VOCABULARY, make_wide_llama

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import numpy.typing as npt

    from extraction.spool import ServerInfo

    Contestant: TypeAlias = Callable[[], Awaitable[float]]
    Round: TypeAlias = dict[str, float]

SHM: Final = Path("/dev/shm")  # noqa: S108  # a private directory is made in it
STORE: Final = "bench-store"
"""What the dumps name as their store."""
GOAL: Final = 0.05
"""Of the prefill time: the seconds of `on` beyond those of `off`."""
CAPTURE_FLAGS: Final = (
    "--enable-return-aux-hidden-states",
    "--speculative-algorithm",
    "--return-aux-hidden-state-layer-ids",
)
RATIOS: Final = {
    "on_vs_off": ("on", "off"),
    "stock_http_vs_off": ("stock_http", "off"),
    "off_vs_inert": ("off", "inert"),
    "off_vs_plain": ("off", "plain"),
    "on_vs_plain": ("on", "plain"),
    "share_of_hand_over": ("hand_over", "on"),
    "hand_over_share_of_memcpy": ("memcpy", "hand_over"),
}
"""Seconds over seconds. The last two are speeds over speeds: as many bytes are moved."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    rounds: int
    stock_rounds: int
    prompts: int
    rows: int
    """Mean tokens a prompt."""
    hidden: int
    """Of the wide model."""


QUICK: Final = Size(rounds=1, stock_rounds=1, prompts=4, rows=96, hidden=1024)


def cases(size: Size, directory: Path, models: Sequence[str]) -> list[Case]:
    """Make the prompts, and the wide model."""
    found = []
    if "smollm2" in models:
        model = ROOT / "demo/model"
        subprocess.run([sys.executable, ROOT / "tools/convert_smollm2.py", model], check=True)
        bare: dict[str, tuple[str, ...]] = {"inert": (), "plain": CAPTURE_FLAGS}
        found.append(
            Case(
                "smollm2",
                model,
                256,
                _prompts(size, 40_000),
                bare=bare,
                stock=size.stock_rounds > 0,
            )
        )
    if "wide" in models:
        wide = make_wide_llama(directory / "model", size.hidden)
        prompts = _prompts(size, VOCABULARY)
        found.append(Case("wide", wide, 512, prompts, layers=CAPTURED, against_memory=True))
    return found


def _prompts(size: Size, vocabulary: int) -> list[npt.NDArray[np.int32]]:
    generator = np.random.default_rng(0)
    lengths = generator.integers(size.rows // 2, size.rows * 3 // 2, size.prompts)
    return [generator.integers(5, vocabulary, length).astype(np.int32) for length in lengths]


async def measure(
    case: Case, directory: Path, environment: Mapping[str, str], size: Size
) -> dict[str, Any]:
    """Start the servers of a case and let everyone take turns."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        url = await enter(with_plugin(case, directory, environment))
        links = {"off": await enter(ServerLink(url, len(case.prompts)))}
        for name, dropped in case.bare.items():
            bare = without_plugin(case, directory / name, environment, dropped)
            links[name] = await enter(ServerLink(await enter(bare), len(case.prompts)))
        options = ExtractOptions(store=Path(STORE), server=url, spool=directory / "spool")
        spool = options.spool
        session = await enter(
            open_session(options, spool, links["off"], RUN, STORE, lambda _: None)
        )
        info = session.spool.wait_for_server(READY_SECONDS)
        clients = Clients(case.prompts, session)
        contestants = _contestants(case, clients, links, url)
        if case.against_memory:
            memory = HandOver(directory / "limit", info, case.prompts, case.chunk_rows)
            stack.callback(memory.close)
            contestants |= _of_memory(memory, info, case)
        results = await _take_turns(contestants, size)
        return _summary(case, info, clients, results)


def _contestants(
    case: Case, clients: Clients, links: Mapping[str, ServerLink], url: str
) -> dict[str, Contestant]:
    contestants: dict[str, Contestant] = {
        name: partial(clients.prefill, link) for name, link in links.items()
    }
    contestants["on"] = clients.capture
    if case.stock:
        contestants["stock_http"] = partial(clients.stock_http, url)
    return contestants


def _of_memory(memory: HandOver, info: ServerInfo, case: Case) -> dict[str, Contestant]:
    copies = Memcpy(info, case.prompts, case.chunk_rows)
    return {
        "hand_over": partial(asyncio.to_thread, memory.run),
        "memcpy": partial(asyncio.to_thread, copies.run),
    }


async def _take_turns(contestants: Mapping[str, Contestant], size: Size) -> list[Round]:
    """Return what each took in each round. The first one warms up; every other one runs backwards."""
    results = []
    for number in range(size.rounds + 1):
        took: Round = {}
        for name in list(contestants)[:: 1 if number % 2 else -1]:
            if name != "stock_http" or 0 < number <= size.stock_rounds:
                took[name] = await contestants[name]()
        print(
            f"  round {number}: " + "  ".join(f"{name} {s:.2f} s" for name, s in took.items()),
            flush=True,
        )
        results.append(took)
    return results[1:]


def _summary(
    case: Case, info: ServerInfo, clients: Clients, results: Sequence[Round]
) -> dict[str, Any]:
    names = dict.fromkeys(name for took in results for name in took)
    handed_over = sum(dump_bytes(len(tokens), info) for tokens in case.prompts)
    seconds = {name: _spread([took[name] for took in results if name in took]) for name in names}
    moving = [name for name in ("on", "hand_over", "memcpy") if name in names]
    ratios = {
        ratio: _spread([took[a] / took[b] for took in results if a in took and b in took])
        for ratio, (a, b) in RATIOS.items()
        if a in names and b in names
    }
    summary: dict[str, Any] = {
        "prompts": len(case.prompts),
        "tokens": case.tokens,
        "chunk_rows": case.chunk_rows,
        "hidden": info.hidden,
        "slots": info.slots,
        "dtype": info.dtype,
        "sglang": info.engine_version,
        "bytes_handed_over": handed_over,
        "prefill_tokens_per_second": case.tokens / seconds["off"]["median"],
        "retries": clients.retries,
        "seconds": seconds,
        "ratios": ratios,
        "mb_per_second": {n: handed_over / 1e6 / seconds[n]["median"] for n in moving},
    }
    if "stock_http" in names:
        rows = statistics.median(clients.answer_rows)
        summary["stock_http_rows"] = rows
        summary["extra_us_per_row"] = {
            "on": _extra_us(results, "on", case.tokens),
            "stock_http": _extra_us(results, "stock_http", rows),
        }
        summary["stock_http_parse_seconds"] = _spread(clients.parse_seconds)
        summary["stock_http_bytes"] = statistics.median(clients.answer_bytes)
    return summary


def _extra_us(results: Sequence[Round], name: str, rows: float) -> float:
    """Microseconds beyond the prefill, for each row that arrived."""
    extra = [took[name] - took["off"] for took in results if name in took]
    return 1e6 * statistics.median(extra) / rows


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def show(name: str, summary: Mapping[str, Any]) -> None:
    """Print one model's figures, and whether the goal was met."""
    moved = summary["bytes_handed_over"] / 1e6
    print(f"{name}: {summary['tokens']} tokens, {moved:.0f} MB of states a round")
    for unit in ("seconds", "ratios"):
        for what, figure in summary[unit].items():
            spread = f"{figure['min']:.3f} to {figure['max']:.3f}"
            print(f"  {what:<24} {figure['median']:8.3f} {unit[:-1]:<7} ({spread})")
    for what, speed in summary["mb_per_second"].items():
        print(f"  {what:<24} {speed:8.0f} MB/s")
    if "stock_http_rows" in summary:
        print(f"  stock HTTP sent {summary['stock_http_rows']:.0f} of {summary['tokens']} rows")
        for what, extra in summary["extra_us_per_row"].items():
            print(f"  {what:<24} {extra:8.0f} us beyond prefill for each row that arrived")
    cost = summary["ratios"]["on_vs_off"]["median"] - 1
    verdict = f"; goal under {GOAL:.0%}: {'met' if cost < GOAL else 'MISSED'}"
    has_goal = "memcpy" not in summary["seconds"]  # the wide model computes next to nothing
    print(f"  capture costs {cost:.1%} of the prefill time{verdict if has_goal else ''}")


async def run(size: Size, models: Sequence[str], threads: int | None) -> dict[str, Any]:
    """Measure all models; SIGTERM ends every server first."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    found = {}
    with tempfile.TemporaryDirectory(dir=SHM, prefix="hsstore-bench-") as name:
        environment = environment_of_servers(threads) | {"TMPDIR": name}  # for their sockets
        for case in cases(size, Path(name), models):
            print(f"{case.name}: starting {1 + len(case.bare)} servers", flush=True)
            found[case.name] = await measure(case, Path(name) / case.name, environment, size)
            show(case.name, found[case.name])
    return found


def main() -> int:
    """Run the benchmark, print the figures, write them into build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--stock-rounds", type=int, default=2, help="of those, with stock HTTP")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--rows", type=int, default=384, help="mean tokens a prompt")
    parser.add_argument("--hidden", type=int, default=7168, help="width of the wide model")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS of servers [default: theirs]")
    parser.add_argument("--only", choices=("smollm2", "wide"), help="one of the models")
    parser.add_argument("--quick", action="store_true", help="tiny, into build/bench-quick.json")
    given = parser.parse_args()
    size = Size(given.rounds, given.stock_rounds, given.prompts, given.rows, given.hidden)
    models = (given.only,) if given.only else ("smollm2", "wide")
    try:
        found = asyncio.run(run(QUICK if given.quick else size, models, given.threads))
    except asyncio.CancelledError:
        return InterruptedRunError.exit_code
    told = {"about": about(), "server_threads": given.threads}
    figures = {name: {**told, **summary} for name, summary in found.items()}
    record("capture", figures, RESULTS.with_name("bench-quick.json") if given.quick else RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
