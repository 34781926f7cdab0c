"""What people see of a run, on a terminal and elsewhere."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

import extraction.progress
from extraction.progress import LiveDisplay, PlainDisplay
from extraction.status import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable

EXTRACTING = RunStatus(
    run="r",
    phase="extracting",
    samples=2000,
    complete=100,
    complete_now=400,
    tokens_now=60_000,
    tokens_pending=260_000,
    bytes_now=150_000_000,
    bytes_committed_now=140_000_000,
    bytes_stored_now=100_000_000,
    in_flight=7,
    in_flight_cap=32,
    spool_used_bytes=3,
    spool_budget_bytes=4,
)


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Give a clock that goes on only when it is told to."""

    class Clock:
        now = 1000.0

        @classmethod
        def monotonic(cls) -> float:
            return cls.now

    def wait(seconds: float) -> None:
        Clock.now += seconds

    monkeypatch.setattr(extraction.progress, "time", Clock)
    return wait


def begin(**changes: object) -> RunStatus:
    """Return the state at the begin of the extraction."""
    nothing = dict.fromkeys(
        ("complete_now", "tokens_now", "bytes_now", "bytes_committed_now", "bytes_stored_now"), 0
    )
    return EXTRACTING.model_copy(update=nothing | changes)


def test_a_line_tells_rates_ratio_and_the_time_that_is_left(
    wait: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    display = PlainDisplay()

    display.show(begin())
    wait(10)
    display.show(EXTRACTING)

    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "extracting: 100/2,000 samples  0 tokens/s  0.0 MB/s  ratio -  ETA -  "
        "in flight 7/32  spool 75%"
    )
    assert second == (
        "extracting: 500/2,000 samples  6,000 tokens/s  15.0 MB/s  ratio 1.40  ETA 0:33  "
        "in flight 7/32  spool 75%"
    )


def test_failed_samples_of_all_runs_are_counted(
    wait: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    PlainDisplay().show(EXTRACTING.model_copy(update={"failed": 1200, "failed_now": 34}))

    assert capsys.readouterr().err.endswith("  failed 1,234\n")


@pytest.mark.parametrize(("left", "eta"), [(200_000, "0:33"), (60_000 * 600 + 6000, "1:40:01")])
def test_the_time_that_is_left_has_hours_when_it_must(
    wait: Callable[[float], None], capsys: pytest.CaptureFixture[str], left: int, eta: str
) -> None:
    display = PlainDisplay()

    display.show(begin())
    wait(10)
    display.show(EXTRACTING.model_copy(update={"tokens_pending": 60_000 + left}))

    assert f"  ETA {eta}  " in capsys.readouterr().err


def test_the_first_instant_shows_no_absurd_rate(
    wait: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    wait(0.001)
    PlainDisplay().show(begin(tokens_now=300, bytes_now=2_000_000))

    assert "  300 tokens/s  2.0 MB/s  " in capsys.readouterr().err


def test_time_before_the_extraction_does_not_count(wait: Callable[[float], None]) -> None:
    screen = io.StringIO()
    display = LiveDisplay(Console(file=screen, force_terminal=True, width=140, color_system=None))

    display.show(RunStatus(run="r", phase="reading data"))
    wait(3600)
    display.show(begin())
    wait(10)
    display.show(EXTRACTING)
    display.close()

    assert "  6,000 tokens/s  " in screen.getvalue()


def test_a_new_phase_is_shown_at_once_and_the_same_one_rarely(
    wait: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    display = PlainDisplay()

    for _ in range(25):
        display.show(RunStatus(run="r", phase="reading data"))
        wait(1)
    display.show(RunStatus(run="r", phase="waiting for server"))
    display.log("a line of the worker")

    assert capsys.readouterr().err.splitlines() == [
        "reading data",
        "reading data",
        "reading data",
        "waiting for server",
        "a line of the worker",
    ]


def test_a_terminal_shows_phase_bar_figures_and_the_last_message_below_the_log(
    wait: Callable[[float], None],
) -> None:
    screen = io.StringIO()
    display = LiveDisplay(Console(file=screen, force_terminal=True, width=140, color_system=None))

    display.show(begin())
    wait(10)
    display.show(EXTRACTING.model_copy(update={"message": "sample 3 [again]", "failed": 2}))
    display.log("[bold]a line[/bold]")
    display.close()

    text = screen.getvalue()
    for part in (
        "extracting",
        "━",
        "500/2,000 samples  6,000 tokens/s  15.0 MB/s  ratio 1.40  ETA 0:33",
        "spool 75%  failed 2",
        "sample 3 [again]",
        "[bold]a line[/bold]",
    ):
        assert part in text
