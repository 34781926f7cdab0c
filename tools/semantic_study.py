"""What `hsstore verify --semantic` finds, and what it misses: SmolLM2 on real conversations.

    make semantic-study
    python tools/semantic_study.py --work build/semantic  # keeps stores and states between runs

States of real conversations, in several languages, code included, cut to 256 tokens, are extracted with hsstore
itself. The checks run over all of them: whatever they find there is a false alarm. Then known faults are planted into
single samples, in the arrays that the checks read, and it is counted how many are found, and by the right name; limits
and maps come from a store in which one sample in seven is faulty. The constants were made on the set `calibration`;
docs/semantic.md tells which set was looked at when. The result goes into docs/semantic-study.json, by set.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.semantic import check_semantics, prefix
from hsstore.semantic.check import prepare
from hsstore.semantic.context import Context
from hsstore.semantic.judge import judge
from hsstore.semantic.measure import measure
from hsstore.store import Store
from hsstore.tasks import Where
from tools.bench_json import ROOT, about
from tools.semantic.chats import choose, write_chats
from tools.semantic.faults import FAULTS, Case, Fault
from tools.semantic.models import other_models
from tools.semantic.stores import extract
from tools.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.report import SemanticReport
    from hsstore.semantic.context import Source
    from hsstore.semantic.limits import Limits

SETS = {
    "calibration": {"english": 154, "code": 44, "other": 22},
    "fresh": {"english": 756, "code": 216, "other": 108},
    "second": {"english": 742, "code": 212, "other": 106},
    "third": {"english": 240, "code": 180, "dialogue": 1000},
    "fourth": {"english": 280, "code": 200, "more dialogue": 1000},
}
"""Conversations of each set, by where they come from; where there are fewer, all of them."""
SALT = 1
TOKENS = dict.fromkeys(SETS, 256) | {"fourth": 192}
"""What the conversations of each set are cut to."""
PLANTED = 40
"""Samples that each fault is planted in."""
FAULTY = 7
"""Every so many-th sample of the store is faulty while limits are learned."""
RESULT = ROOT / "docs/semantic-study.json"
MODEL = ROOT / "demo/model"


def main() -> int:
    """Run the study; print a table, and write the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="where stores and states are kept")
    parser.add_argument("--set", choices=SETS, default="fresh", help="which set to look at")
    parser.add_argument("--result", type=Path, default=RESULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hsstore-study-") as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        languages = make_stores(work, [options.set])
        result = {"about": about(), "set": options.set, "languages": languages[options.set]}
        result |= study(work / f"{options.set}.zarr", work / f"models-{options.set}")
    document = json.loads(options.result.read_text()) if options.result.exists() else {}
    document[options.set] = result
    options.result.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written: {options.result}")
    return 0


def make_stores(work: Path, names: list[str]) -> dict[str, dict[str, int]]:
    """Extract the sets that are not there yet; return their languages."""
    languages = {}
    chosen = choose(SETS, SALT)
    for name in names:
        chats, store = work / f"{name}.jsonl", work / f"{name}.zarr"
        languages[name] = write_chats(chosen[name], chats)
        if store.exists() and not Store.open(store).completion().pending.any():
            continue
        with serving(MODEL, work / "server.log", "--threads", "1") as server:
            extract(store, chats, MODEL, server, TOKENS[name])
    return languages


def study(store_path: Path, cache: Path) -> dict[str, Any]:
    """Look for false alarms, then plant faults."""
    report = look_for_alarms(store_path, "false alarms")
    with no_shared_beginnings():
        alone = look_for_alarms(store_path, "false alarms if no beginning were shared")
    cases = make_cases(Store.open(store_path), cache)
    source, limits = learn_with_faults(store_path, cases)
    faults = [plant(source, limits, fault, cases) for fault in FAULTS]
    return {
        "samples": report.samples,
        "tokens": report.tokens,
        "false_alarms": listed(report),
        "false_alarms_without_shared_beginnings": listed(alone),
        "checks": [
            check.model_dump(mode="json", include={"name", "slot", "checked", "typical", "limit"})
            for check in report.checks
        ],
        "faults": faults,
    }


def look_for_alarms(store_path: Path, title: str) -> SemanticReport:
    """Check a good store, and print what is found there."""
    report = check_semantics(store_path, MODEL, Where(workers=1))
    print(f"{report.samples} samples, {report.tokens} tokens: {len(report.bad)} {title}")
    for bad in report.bad:
        print(f"  {bad.sample} {bad.kind} {bad.slots} {bad.detail}")
    return report


def listed(report: SemanticReport) -> list[dict[str, Any]]:
    """Return what was found, without names of conversations."""
    return [bad.model_dump(mode="json", exclude={"sample_id"}) for bad in report.bad]


@contextmanager
def no_shared_beginnings() -> Iterator[None]:
    """Let the checks know of no beginning that samples share, as in a store of bare texts."""
    members = prefix.MEMBERS
    prefix.MEMBERS = sys.maxsize
    try:
        yield
    finally:
        prefix.MEMBERS = members


# --- faults -----------------------------------------------------------------------------------


def make_cases(store: Store, cache: Path) -> dict[int, Case]:
    """Choose the samples that faults are planted in, spread over the store, and what they need.

    The first `PLANTED` cases have states of other models; the rest only make the store faulty.
    """
    length = store.length
    whole = np.flatnonzero((length == length.max()) & store.completion().complete)
    planted = whole[np.linspace(1, len(whole) - 1, PLANTED).astype(int)].tolist()
    mixed = [int(s) for s in whole[::FAULTY] if s not in planted]
    states = other_models(MODEL, [store.input_ids(s) for s in planted], cache)
    weight = np.asarray(store.plan_array("norm_weight"), np.float32)
    generator = np.random.default_rng(0)
    cases = {}
    for at, sample in enumerate([*planted, *mixed]):
        other = int(generator.choice(whole[whole != sample]))
        cases[sample] = Case(
            bits(store, sample),
            bits(store, other),
            weight,
            states[at] if at < PLANTED else {},
            sample,
        )
    return cases


def bits(store: Store, sample: int) -> npt.NDArray[np.uint16]:
    """Return a copy of the raw bits of a sample."""
    return np.array(store.states(sample).view(np.uint16))


def learn_with_faults(store: Path, cases: dict[int, Case]) -> tuple[Source, Limits]:
    """Learn from a store in which the samples behind the first cases are faulty, by all kinds of faults."""
    usable = [fault for fault in FAULTS if fault.right and not fault.needs_model]
    faulty = {
        sample: usable[at % len(usable)].plant(cases[sample])
        for at, sample in enumerate(list(cases)[PLANTED:])
    }
    with planted_states(faulty):
        prepared = prepare(store, MODEL, Where(workers=1), seed=0)
    return prepared.source, prepared.limits


@contextmanager
def planted_states(states: dict[int, npt.NDArray[np.uint16]]) -> Iterator[None]:
    """Let the checks read these states for these samples."""
    read = Context.read

    def planted_read(self: Context, sample: int, rows: slice) -> npt.NDArray[Any]:
        return states[sample][rows] if sample in states else read(self, sample, rows)

    Context.read = planted_read  # type: ignore[method-assign]
    try:
        yield
    finally:
        Context.read = read  # type: ignore[method-assign]


def plant(source: Source, limits: Limits, fault: Fault, cases: dict[int, Case]) -> dict[str, Any]:
    """Plant one fault in the first cases, each by itself, and count what the checks call it."""
    if fault.alone:
        source = source.with_fit(replace(source.fitted, references=()))
    context = Context(source)
    kinds: Counter[str] = Counter()
    missed = []
    for sample in list(cases)[:PLANTED]:
        with planted_states({sample: fault.plant(cases[sample])}):
            judgement = judge(context, limits, measure(context, sample))
        kind = str(judgement.kind) if judgement else "nothing"
        kinds[kind] += 1
        if fault.right and kind != fault.right:
            missed.append({"sample": sample, "found": kind})
    named = kinds[str(fault.right)] / PLANTED if fault.right else None
    share = "   -" if named is None else f"{named:4.0%}"
    print(f"{fault.name:32} {share}  {dict(kinds)}")
    return {
        "fault": fault.name,
        "right": str(fault.right) if fault.right else None,
        "planted": PLANTED,
        "found": PLANTED - kinds["nothing"],
        "named": named,
        "kinds": dict(kinds),
        "missed": missed,
    }


if __name__ == "__main__":
    sys.exit(main())
