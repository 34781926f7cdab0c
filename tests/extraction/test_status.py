"""The page in shared memory through which a run says how it is."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from extraction.status import RunStatus, StatusPage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def page(tmp_path: Path) -> Iterator[StatusPage]:
    page = StatusPage.create(tmp_path / "run")
    yield page
    page.remove()


def test_a_new_page_says_nothing_yet(page: StatusPage) -> None:
    assert page.read() is None


def test_another_process_reads_what_was_written_last(page: StatusPage) -> None:
    page.write(RunStatus(run="r", samples=5, message="größer " * 100))
    page.write(RunStatus(run="r", samples=6))
    program = (
        "import sys; from pathlib import Path; from extraction.status import StatusPage;"
        "print(StatusPage(Path(sys.argv[1])).read().samples)"
    )

    command: list[str | Path] = [sys.executable, "-c", program, page.path]
    result = subprocess.run(command, capture_output=True, text=True, check=True)

    assert result.stdout == "6\n"


def test_a_reader_never_sees_half_a_state(page: StatusPage) -> None:
    ended = threading.Event()
    wrong: list[RunStatus] = []

    def read() -> None:
        other = StatusPage(page.path)
        while not ended.is_set():
            status = other.read()
            if status is not None and status.message != "x" * status.samples:
                wrong.append(status)

    reader = threading.Thread(target=read)
    reader.start()
    for length in range(2000):
        page.write(RunStatus(run="r", samples=length % 500, message="x" * (length % 500)))
    ended.set()
    reader.join()

    assert not wrong


def test_a_writer_that_died_in_the_middle_leaves_nothing_to_believe(page: StatusPage) -> None:
    page.write(RunStatus(run="r", samples=5))
    content = bytearray(page.path.read_bytes())
    content[0] |= 1  # the sequence is odd while a state is being written
    page.path.write_bytes(content)

    status = page.read()
    page.write(RunStatus(run="r", samples=7))
    after = page.read()

    assert status is None
    assert after is not None
    assert after.samples == 7


def test_a_removed_page_is_gone(tmp_path: Path) -> None:
    page = StatusPage.create(tmp_path)

    page.remove()

    assert list(tmp_path.iterdir()) == []
