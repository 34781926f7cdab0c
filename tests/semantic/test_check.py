"""A whole store: what is checked, where, and what is said of what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hsstore.create import Golden
from hsstore.errors import RefusedError
from hsstore.report import SemanticKind as Kind
from hsstore.semantic import check_semantics
from hsstore.store import Store
from hsstore.tasks import Where
from hsstore.testing.finite import make_run_record
from tests.semantic.synthetic import (
    PROMPT,
    Formula,
    bits_of,
    make_store,
    write_checkpoint,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.report import SemanticReport

WHERE = Where(workers=1)
STARTED = "2026-01-01T00:00:00+00:00"


@pytest.fixture(scope="module")
def report(healthy: Path, checkpoint: Path) -> SemanticReport:
    return check_semantics(healthy, checkpoint, WHERE)


def test_a_healthy_store_is_ok_and_all_of_it_was_looked_at(
    report: SemanticReport, texts: list[list[int]]
) -> None:
    assert report.ok
    assert report.bad == ()
    assert report.samples == len(texts)
    assert report.tokens == sum(map(len, texts))
    assert report.unreadable == 0


def test_every_check_says_what_it_sees_and_what_not_and_where_its_limit_comes_from(
    report: SemanticReport,
) -> None:
    assert {check.name for check in report.checks} == {
        "values",
        "final norm",
        "norm twice",
        "row size",
        "next token",
        "next token, 64 rows",
        "own token",
        "own token, 64 rows",
        "shared beginning",
        "golden states",
    }
    for check in report.checks:
        assert check.sees
        assert check.blind
        assert check.why
        assert check.checked == (check.limit is not None)
    unchecked = {check.name for check in report.checks if not check.checked}
    assert unchecked == {"golden states"}


def test_the_same_is_found_on_processes(
    healthy: Path, checkpoint: Path, report: SemanticReport
) -> None:
    found = check_semantics(healthy, checkpoint, Where(processes=2))

    assert (found.ok, found.samples, found.tokens) == (True, report.samples, report.tokens)
    for here, there in zip(report.checks, found.checks, strict=True):
        assert (here.name, here.slot, here.checked) == (there.name, there.slot, there.checked)
        assert (here.limit or 0) == pytest.approx(there.limit or 0, rel=1e-3)


def test_the_same_seed_gives_the_same_report_on_any_number_of_threads(
    healthy: Path, checkpoint: Path, report: SemanticReport
) -> None:
    assert check_semantics(healthy, checkpoint, Where(workers=3)) == report
    assert check_semantics(healthy, checkpoint, WHERE, seed=1).seed == 1


def test_only_the_samples_that_are_asked_for_are_judged(healthy: Path, checkpoint: Path) -> None:
    seen: list[tuple[int, int]] = []

    report = check_semantics(
        healthy,
        checkpoint,
        WHERE,
        samples=[3, 5],
        progress=lambda done, total: seen.append((done, total)),
    )

    assert report.samples == 2
    assert seen[-1] == (2, 2)


def test_pending_samples_are_not_looked_at(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [Formula().capture(ids) for ids in texts]
    complete = [at for at in range(len(texts)) if at % 3]
    store = make_store(directory / "store.zarr", texts, states, complete=complete)

    report = check_semantics(store.path, checkpoint, WHERE)

    assert report.ok
    assert report.samples == len(complete)


def test_an_empty_and_a_tiny_store_say_that_nothing_is_known(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [Formula().capture(ids) for ids in texts[:3]]
    for name, complete in (("empty", []), ("tiny", [0, 1, 2])):
        store = make_store(directory / name, texts[:3], states, complete=complete)

        report = check_semantics(store.path, checkpoint, WHERE)

        assert report.ok
        assert report.samples == len(complete)
        unchecked = {check.name for check in report.checks if not check.checked}
        assert {"row size", "next token", "own token", "shared beginning"} <= unchecked


def test_samples_that_cannot_be_read_are_counted_and_the_rest_is_checked(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [Formula().capture(ids) for ids in texts]
    store = make_store(directory / "store.zarr", texts, states)
    shard = next((store.path / "hidden_states/c").glob("0/0/0"), None) or next(
        path for path in sorted((store.path / "hidden_states").rglob("c*")) if path.is_file()
    )
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)

    report = check_semantics(store.path, checkpoint, WHERE)

    assert report.unreadable == 1
    assert report.samples == len(texts) - 1
    assert report.bad == ()


def test_a_model_with_too_few_tokens_is_refused(
    healthy: Path, directory: Path, texts: list[list[int]]
) -> None:
    formula = Formula()
    write_checkpoint(
        directory,
        {
            "lm_head.weight": ("BF16", bits_of(formula.embedding[:110])),
            "model.norm.weight": ("F32", formula.norm_weight),
        },
    )

    with pytest.raises(RefusedError, match="it has 110 tokens, and the store has token"):
        check_semantics(healthy, directory, WHERE)


# --- golden states ----------------------------------------------------------------------------


def golden_of(formula: Formula) -> Golden:
    return Golden(PROMPT, formula.capture(PROMPT))


def test_golden_states_that_the_samples_have_too_are_all_right(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [Formula().capture(ids) for ids in texts]
    store = make_store(directory / "store.zarr", texts, states, golden=golden_of(Formula()))

    report = check_semantics(store.path, checkpoint, WHERE)

    assert report.ok
    assert all(check.checked for check in report.checks)


def test_a_fault_of_all_samples_shows_against_the_golden_states(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = []
    for ids in texts:  # all rows of slot 0 are 0.9 of what they should be
        bits = Formula().capture(ids)
        bits[:, 0] = bits_of(0.9 * Formula().states(ids)[:, 0])
        states.append(bits)
    store = make_store(directory / "store.zarr", texts, states, golden=golden_of(Formula()))

    report = check_semantics(store.path, checkpoint, WHERE)

    assert [(bad.sample, bad.kind, bad.slots) for bad in report.bad] == [
        (None, Kind.WRONG_MODEL, (0,))
    ]
    assert "the golden states differ from samples" in report.bad[0].detail


def test_a_run_with_other_golden_states_is_named(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [Formula().capture(ids) for ids in texts]
    store = make_store(directory / "store.zarr", texts, states, golden=golden_of(Formula()))
    for run, formula in (("right", Formula()), ("wrong", Formula(seed=1))):
        Store.open(store.path).record_run(
            make_run_record(run, STARTED, ended=False), golden_of(formula).bits
        )
    Store.open(store.path).record_run(make_run_record("killed-early", STARTED, ended=False))

    report = check_semantics(store.path, checkpoint, WHERE)

    assert [(bad.sample, bad.kind) for bad in report.bad] == [(None, Kind.WRONG_MODEL)]
    assert "run wrong: its golden states differ" in report.bad[0].detail
