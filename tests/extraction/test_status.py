"""The page in shared memory through which a run says how it is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from extraction.status import RunStatus, ServerState, StatusPage

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


@pytest.mark.parametrize(
    "message", ["a" * 200_000, '"\\\n' * 50_000, "\x01" * 70_000, "🙂" * 20_000]
)
def test_of_a_message_that_is_too_long_the_beginning_is_kept(
    page: StatusPage, message: str
) -> None:
    page.write(RunStatus(run="r", samples=5, message=message))

    status = page.read()

    assert status is not None
    assert status.samples == 5
    assert len(status.message) >= 1000
    assert message.startswith(status.message)


def test_of_very_many_servers_the_page_has_what_fits(page: StatusPage) -> None:
    one = ServerState(url="http://127.0.0.1:30000", spool="/dev/shm/s", message="reset " * 50)
    page.write(RunStatus(run="r", servers=(one,) * 300))

    found = page.read()

    assert found is not None
    assert set(found.servers) == {one.model_copy(update={"message": ""})}


def test_pages_of_dead_runs_are_removed_when_a_new_one_starts(tmp_path: Path) -> None:
    program = (
        "import os; from pathlib import Path; from extraction.status import StatusPage;"
        f"StatusPage.create(Path({str(tmp_path)!r})); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    left = [path.name for path in tmp_path.iterdir()]
    other = tmp_path / "notes.status"
    other.touch()

    live = StatusPage.create(tmp_path)
    reader = StatusPage(live.path)
    second = StatusPage.create(tmp_path)

    assert len(left) == 1
    assert set(tmp_path.iterdir()) == {live.path, second.path, other}
    live.write(RunStatus(run="r"))
    assert reader.read() == RunStatus(run="r")
    live.remove()
    second.remove()


def test_a_page_that_is_just_being_created_is_not_taken_for_dead(tmp_path: Path) -> None:
    others = tmp_path / "run-other.status"
    created: list[StatusPage] = []
    creating = threading.Thread(target=lambda: created.append(StatusPage.create(tmp_path)))
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    with others.open("wb") as file:
        creating.start()
        time.sleep(0.1)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.close(directory)
        creating.join()

        assert others.exists()
    created[0].remove()


def test_a_removed_page_is_gone(tmp_path: Path) -> None:
    page = StatusPage.create(tmp_path)

    page.remove()

    assert list(tmp_path.iterdir()) == []
