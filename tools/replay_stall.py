"""Replay the failure that hsstore was written for: a disk that stops answering in mid run.

python tools/replay_stall.py [--watch-seconds 40]

Two clients fill the same ext4 file system from two servers: a naive one, which writes one .pt a
sample, and hsstore. Then the file system is frozen (fsfreeze: writers wait in state D, looking
still works). What each says and when; then both are killed, the disk is thawed, and both are started
again. Needs root, for the mount. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from extraction.diagnosis.processes import look_at_process
from hsstore.store import Store
from hsstore.verify import verify_store
from tests.extraction.processes import SMALL_STORE, Extraction
from tests.extraction.tiny import write_data
from tests.faults import lab
from tests.faults.fake import Fake, serving

SAMPLES, ROWS = 400, 200
STALL_SECONDS = 10.0
FULL_LINES, LINE_CHARACTERS = 22, 220
NAIVE = """
import json, sys, urllib.request
from pathlib import Path
import torch
from extraction.spool import ClientInfo, RequestId, SpoolClient

url, spool, data, output = sys.argv[1:]
with SpoolClient(Path(spool), ClientInfo("naive", "none")) as client:
    for index, line in enumerate(open(data)):
        target = Path(output) / f"data_{index}.pt"
        if target.exists():  # done already
            continue
        sample = json.loads(line)
        rid = RequestId("naive", index, 1, len(sample["input_ids"]))
        body = {"rid": str(rid), "extra_key": str(rid), "input_ids": sample["input_ids"],
                "sampling_params": {"max_new_tokens": 0}}
        request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        urllib.request.urlopen(request).read()
        dump = client.open_dump(rid)
        states = torch.from_numpy(dump.hidden.copy().view("int16"))
        dump.close()
        torch.save({"hidden_states": states, "input_ids": sample["input_ids"]}, target)
        client.discard(rid)
        if index % 20 == 0:
            print(f"processed {index} samples", flush=True)
"""


@dataclass
class Watched:
    """A client's log, and when its lines came."""

    name: str
    log: Path
    lines: list[tuple[float, str]] = field(default_factory=list)

    def look(self, frozen_at: float) -> None:
        """Take note of new lines."""
        for line in self.log.read_text().splitlines()[len(self.lines) :]:
            self.lines.append((time.monotonic() - frozen_at, line))

    def since_the_freeze(self) -> list[tuple[float, str]]:
        """Return what came after it."""
        return [(seconds, line) for seconds, line in self.lines if seconds > 0]


class Naive:
    """The naive client's process."""

    def __init__(self, server: Fake, data: Path, output: Path, log: Path) -> None:
        output.mkdir(exist_ok=True)
        with log.open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", NAIVE, server.url, server.spool, data, output],
                stdout=file,
                stderr=file,
                start_new_session=True,
            )


def main() -> None:
    """Replay it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watch-seconds", type=float, default=40.0)
    watch_seconds = parser.parse_args().watch_seconds
    with lab.room() as room, lab.ext4(room, 512 * lab.MIB) as disk:
        data = write_data(room / "data.jsonl", [ROWS] * SAMPLES)
        with (
            serving(room / "spool-naive", SAMPLES) as one,
            serving(room / "spool-hsstore", SAMPLES) as two,
        ):
            one.slowly(0.1)
            two.slowly(0.5)
            replay(room, disk, data, one, two, watch_seconds)


def replay(room: Path, disk: Path, data: Path, one: Fake, two: Fake, watch_seconds: float) -> None:
    """Freeze, watch, kill, thaw, and go on."""
    output, store = disk / "naive", disk / "states.zarr"
    logs = [Watched("naive client", room / "naive.log"), Watched("hsstore", room / "hsstore.log")]
    naive = Naive(one, data, output, logs[0].log)
    options = ("--data", data, "--stall-after", str(STALL_SECONDS), "--max-in-flight", "4")
    run = Extraction(store, two, *options, *SMALL_STORE, log=logs[1].log)
    try:
        run.wait_for(lambda status: status.complete_now > SAMPLES // 4)
        _wait(lambda: len(list(output.glob("*.pt"))) > SAMPLES // 10)
        before = (len(list(output.glob("*.pt"))), committed(store))
        began = time.monotonic()
        for log in logs:
            log.look(began + 1)
        lab.freeze(disk)
        watch(logs, began, watch_seconds)
        examined = doctor(store)
        states = naive_states(naive)
        worker = run.worker()
        for process in (naive.process, run.process, worker):
            if process is not None:
                process.kill()
    finally:
        lab.thaw(disk)
        naive.process.kill()
        naive.process.wait()
        run.kill()
    _report(logs, before, examined, states, watch_seconds)
    recover(room, output, store, data, one, two)


def watch(logs: list[Watched], began: float, seconds: float) -> None:
    """Read both logs while nothing moves."""
    while time.monotonic() - began < seconds:
        for log in logs:
            log.look(began)
        time.sleep(0.1)


def doctor(store: Path) -> dict[str, object]:
    """Ask `hsstore doctor` in another process."""
    began = time.monotonic()
    command: list[str | Path] = [sys.executable, "-m", "hsstore", "doctor", store, "--json"]
    ended = subprocess.run(
        [*command, "--timeout", "3", "--stalled-after", str(STALL_SECONDS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    found: dict[str, object] = json.loads(ended.stdout)
    return found | {"exit": ended.returncode, "seconds": time.monotonic() - began}


def naive_states(naive: Naive) -> str:
    """Say what the kernel tells of the naive client: all that anybody can find out."""
    threads = look_at_process(naive.process.pid, "naive").threads
    states = sorted({thread.state for thread in threads}, key="DRS".find)
    return f"{len(threads)} threads, states {', '.join(states)}"


def committed(store: Path) -> int:
    """Count the complete samples."""
    return int(Store.open(store).completion().complete.sum())


def recover(room: Path, output: Path, store: Path, data: Path, one: Fake, two: Fake) -> None:
    """Start both again, and look at what they end with."""
    import torch  # noqa: PLC0415

    kept, damaged = committed(store), _damaged(output, torch)
    asked = len(two.server.requests)
    one.slowly(0)
    two.slowly(0)
    began = time.monotonic()
    again = Naive(one, data, output, room / "naive-again.log")
    naive_code = again.process.wait(300)
    naive_seconds = time.monotonic() - began
    ended = Extraction(store, two, log=room / "hsstore-again.log").wait(300)
    report = verify_store(store)
    print("\n### After kill -9 of both, the thaw, and a second start\n")
    print("| | naive client | hsstore |\n|---|---|---|")
    print(f"| damaged files after the kill | {len(damaged)} | 0 |")
    print(f"| complete before the second start | not known | {kept} (bits) |")
    print(f"| second start: exit code, seconds | {naive_code}, {naive_seconds:.1f} |", end="")
    print(f" {ended.code}, {ended.seconds:.1f} |")
    print(f"| asked again | | {len(two.server.requests) - asked} of {SAMPLES - kept} pending |")
    still = _damaged(output, torch)
    print(f"| damaged in the end | {len(still)} {still or ''} | {len(report.bad)} |")
    print(f"| verified | cannot be | {report.checked} of {report.samples} samples |")


def _damaged(output: Path, torch: object) -> list[str]:
    bad = []
    for path in sorted(output.glob("*.pt")):
        try:
            torch.load(path)  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001  # whatever torch says of a cut file
            bad.append(path.name)
    return bad


def _report(
    logs: list[Watched],
    before: tuple[int, int],
    examined: dict[str, object],
    states: str,
    watch_seconds: float,
) -> None:
    print(f"### {watch_seconds:.0f} seconds on a frozen disk\n")
    print(f"Before the freeze: {before[0]} .pt files; {before[1]} samples committed by hsstore.\n")
    for log in logs:
        said = log.since_the_freeze()
        print(f"**{log.name}** said after the freeze:\n\n```")
        for number, (seconds, line) in enumerate(said):
            if number < FULL_LINES or "stalled: " in line:  # the report is repeated
                print(f"+{seconds:5.1f} s  {line[:LINE_CHARACTERS]}")
        print(f"{'(nothing)' if not said else ''}\n```\n".lstrip("\n"))
    print(f"The kernel of the naive client: {states}; what for, and what is lost, nobody says.\n")
    print(f"`hsstore doctor`: exit code {examined['exit']} after {examined['seconds']:.1f} s:\n")
    print(f"```\n{examined['verdict']}: {examined['summary']}\n")
    evidence = examined["evidence"]
    assert isinstance(evidence, list)  # noqa: S101
    print("\n".join(f"  - {str(line)[:LINE_CHARACTERS]}" for line in evidence))
    cost = examined["kill_cost"]
    print(f"\nadvice: {examined['advice']}\na kill now: {cost['text']}\n```")  # type: ignore[index]


def _wait(condition: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise SystemExit("the clients did not get going")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
