"""Run `hsstore extract` for a while under random faults, and check what must be true at the end.

python tools/soak.py [--minutes 10] [--seed 0]

Stores are filled one after the other, on ext4 (frozen, filled up) and on FUSE (hanging, failing) by
turns, from a fake server that goes wrong by sample. Every few seconds one fault strikes. A run
that ends is started again. After each store, and at the end: every sample is there, bit for bit
what the server sent, and nothing is left of claims, unpublished files, dumps and processes. Needs
root. Prints figures as Markdown; exit code 1 when an invariant does not hold.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.store import Store
from hsstore.verify import verify_store
from tests.extraction.fake_model import Fault, fake_states
from tests.extraction.processes import SMALL_STORE, Extraction, left_claims
from tests.extraction.tiny import write_data
from tests.faults import lab
from tests.faults.fake import Fake, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES, ROWS = 600, 60
STALL_SECONDS = 3.0
CALM_SECONDS = (0.5, 3.0)
"""Between two faults."""
LAST_WORDS_SECONDS = 10.0
"""What a killed run's helpers may take to end."""
STORE_SECONDS = 150.0
"""Of faults for one store: then comes the next, on the other file system."""
LAST_SECONDS = 120.0
"""For the last run of a store, without faults."""
DISK_FAULTS = [
    *((name, "") for name in ("hang", "hang-writes", "EIO", "ENOSPC", "EDQUOT", "EROFS", "ESTALE")),
    ("EIO", "fsync"),
    ("ENOTSUP", "fsyncdir"),
    ("slow", "0.05"),
]
"""Of the file system in user space: see `tests.faults.faulty_fuse`."""
BY_SAMPLE = [
    Fault.WRONG_TOKENS,
    Fault.NAN_ROW,
    Fault.ZERO_ROW,
    Fault.TRUNCATED,
    Fault.WRONG_DTYPE,
    Fault.OTHER_STORE,
    Fault.SERVER_ERROR,
    Fault.RESET,
    Fault.OVERRUN,
    Fault.FULL,
    Fault.ENGINE,
]
EXPECTED_CODES = {0, 74, 75, -signal.SIGKILL, -signal.SIGTERM}
"""The last two: the supervisor was hit, and hit before it listened."""


@dataclass
class Figures:
    """What happened."""

    faults: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    stores: int = 0
    samples: int = 0
    asked: int = 0
    stalls: int = 0
    recovered: int = 0
    broken: list[str] = field(default_factory=list)

    def report(self, seconds: float, seed: int) -> None:
        """Print them."""
        print(f"Soak of {seconds / 60:.1f} minutes, seed {seed}:\n")
        print("| figure | value |\n|---|---|")
        print(f"| stores filled | {self.stores} |")
        print(f"| samples committed and verified | {self.samples:,} |")
        print(f"| requests for them | {self.asked:,} |")
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        print(f"| exit codes of the runs | {codes} |")
        print(f"| stalls reported, recovered | {self.stalls}, {self.recovered} |")
        for name, count in sorted(self.faults.items()):
            print(f"| fault: {name} | {count} |")
        print(f"| invariants broken | {len(self.broken)} |")
        for line in self.broken:
            print(f"| | {line} |")


class Soak:
    """One store on one file system, and what strikes it."""

    def __init__(
        self,
        store: Path,
        server: Fake,
        room: Path,
        data: Path,
        chance: random.Random,
        figures: Figures,
    ) -> None:
        self._store, self._server, self._room, self._data = store, server, room, data
        self._chance, self._figures = chance, figures
        self._runs = 0
        self.disk: Path | None = None
        self.fuse: lab.Fuse | None = None

    def fill(self, until: float) -> None:
        """Run, under faults until a time, then without, until every sample is there."""
        self._sow()
        while True:
            with self._running() as run:
                while run.process.poll() is None and time.monotonic() < until:
                    if self._is_extracting(run):
                        self._strike(run)
                    time.sleep(self._chance.uniform(*CALM_SECONDS))
                calm = time.monotonic() >= until
                if calm:
                    self._server.server.faults.clear()
                ended = run.wait(LAST_SECONDS)
            self._note(ended.code, ended.log)
            if ended.code == 0 or (calm and ended.code not in EXPECTED_CODES):
                break
        self._check()

    @staticmethod
    def _is_extracting(run: Extraction) -> bool:
        """Whether there is something to disturb."""
        with suppress(psutil.Error, OSError):
            status = run.status()
            return status is not None and status.tokens_now > 0
        return False

    # --- faults -------------------------------------------------------------------------------

    def _sow(self) -> None:
        """Let the requests of some samples go wrong once or twice."""
        for sample in self._chance.sample(range(SAMPLES), SAMPLES // 20):
            faults = self._chance.choices(BY_SAMPLE, k=self._chance.randint(1, 2))
            self._server.server.faults[sample] = faults
            self._figures.faults.update(f"request: {fault.name.lower()}" for fault in faults)

    def _strike(self, run: Extraction) -> None:
        name, strike = self._chance.choice(self._strikes(run))
        self._figures.faults[name] += 1
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            strike()

    def _strikes(self, run: Extraction) -> list[tuple[str, Callable[[], None]]]:
        common: list[tuple[str, Callable[[], None]]] = [
            ("kill -9 of the worker", lambda: self._to_worker(run, signal.SIGKILL)),
            ("kill -9 of the supervisor", run.process.kill),
            ("SIGTERM", lambda: run.process.send_signal(signal.SIGTERM)),
            ("worker stopped for a while", lambda: self._pause_worker(run)),
            ("server hangs for a while", self._hang_server),
            ("dump removed from the spool", self._steal_dump),
        ]
        if self.disk is not None:
            common += [("disk frozen for a while", self._freeze), ("disk full", self._use_up)]
        if self.fuse is not None:
            common += [(f"disk: {' '.join(one).strip()}", self._fault(*one)) for one in DISK_FAULTS]
        return common

    def _while(self) -> None:
        time.sleep(self._chance.uniform(0.5, 2 * STALL_SECONDS))

    def _to_worker(self, run: Extraction, number: signal.Signals) -> None:
        worker = run.worker()
        if worker is not None:
            worker.send_signal(number)

    def _pause_worker(self, run: Extraction) -> None:
        self._to_worker(run, signal.SIGSTOP)
        self._while()
        self._to_worker(run, signal.SIGCONT)

    def _hang_server(self) -> None:
        self._server.hold()
        self._while()
        self._server.release()

    def _steal_dump(self) -> None:
        for path in list(self._server.spool.glob("hs-*"))[:1]:
            path.unlink(missing_ok=True)

    def _freeze(self) -> None:
        if self.disk is not None:
            with lab.frozen(self.disk):
                self._while()

    def _use_up(self) -> None:
        if self.disk is not None:
            filler = lab.use_up_bytes(self.disk)
            self._while()
            filler.unlink()

    def _fault(self, name: str, text: str) -> Callable[[], None]:
        def strike() -> None:
            if self.fuse is not None:
                with self.fuse.set(name, text):
                    self._while()

        return strike

    # --- runs and invariants ------------------------------------------------------------------

    @contextmanager
    def _running(self) -> Iterator[Extraction]:
        self._runs += 1
        options = ("--stall-after", str(STALL_SECONDS), "--max-failures", "1", "--grace", "5")
        log = self._room / f"{self._store.parent.name}-{self._runs}.log"
        run = Extraction(
            self._store, self._server, "--data", self._data, *SMALL_STORE, *options, log=log
        )
        try:
            yield run
        finally:
            run.kill()

    def _note(self, code: int, log: str) -> None:
        figures = self._figures
        figures.codes[code] += 1
        figures.stalls += log.count("hsstore: stalled: ")
        figures.recovered += log.count("hsstore: recovered after ")
        if code not in EXPECTED_CODES:
            figures.broken.append(f"exit code {code}: {log.splitlines()[-1:]}")
        if "Traceback" in log or "never retrieved" in log:
            figures.broken.append(f"noise in the log: {log[-300:]}")

    def _check(self) -> None:
        report, figures = verify_store(self._store), self._figures
        store = Store.open(self._store)
        figures.broken += [f"{bad.kind}: {bad.detail}" for bad in report.bad]
        if report.checked != SAMPLES:
            figures.broken.append(f"{report.checked} of {SAMPLES} samples are complete")
        figures.broken += [f"sample {one} is not what was sent" for one in self._wrong(store)]
        left = [str(path) for path in self._store.rglob("*.partial")]
        left += [path.name for path in self._server.spool.glob("hs-*")]
        left += [f"claim {name}" for name in left_claims(self._store)]
        figures.broken += [f"left behind: {name}" for name in left]
        figures.stores += 1
        figures.samples += report.checked
        figures.asked += len(self._server.server.requests)

    def _wrong(self, store: Store) -> list[int]:
        info, wrong = self._server.server.info, []
        for index in np.flatnonzero(store.completion().complete).tolist():
            expected = fake_states(store.input_ids(index), info)
            if not np.array_equal(store.payload.read(index), expected):
                wrong.append(index)
        return wrong


def main() -> int:
    """Soak, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # the fake server's warnings are as wanted
    chance, figures = random.Random(arguments.seed), Figures()  # noqa: S311
    began = time.monotonic()
    until = began + 60 * arguments.minutes
    number = 0
    while time.monotonic() < until:
        with lab.room("hsstore-soak-") as room, ExitStack() as stack:
            end = min(until, time.monotonic() + STORE_SECONDS)
            soak_one(room, stack, number, end, chance, figures)
        number += 1
    time.sleep(LAST_WORDS_SECONDS)
    left = [" ".join(one.cmdline()) for one in psutil.process_iter() if _is_ours(one)]
    figures.broken += [f"a process is left: {command}" for command in left]
    figures.report(time.monotonic() - began, arguments.seed)
    return bool(figures.broken)


def soak_one(
    room: Path,
    stack: ExitStack,
    number: int,
    until: float,
    chance: random.Random,
    figures: Figures,
) -> None:
    """Fill one store: an even one on ext4, an odd one on FUSE."""
    data = write_data(room / "data.jsonl", [ROWS] * SAMPLES, seed=number)
    server = stack.enter_context(serving(room / "spool", SAMPLES))
    server.slowly(0.3)
    if number % 2 == 0:
        disk = stack.enter_context(lab.ext4(room, 128 * lab.MIB))
        soak = Soak(disk / "s.zarr", server, room, data, chance, figures)
        soak.disk = disk
    else:
        fuse = stack.enter_context(lab.fuse(room))
        soak = Soak(fuse.mount / "s.zarr", server, room, data, chance, figures)
        soak.fuse = fuse
    soak.fill(until)


def _is_ours(process: psutil.Process) -> bool:
    try:
        return any("hsstore-soak-" in one for one in process.cmdline())
    except psutil.Error:
        return False


if __name__ == "__main__":
    sys.exit(main())
