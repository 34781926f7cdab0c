"""A real SGLang 0.5.23 from its unmodified wheel, on the CPU, in an environment of its own.

`make test-sglang` makes that environment. Without it these tests are skipped, or fail where
HSSTORE_REQUIRE_SGLANG=1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sglang.models import make_llama
from tests.sglang.serving import PYTHON, ROOT, running, runs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

pytest.register_assert_rewrite("tests.sglang.checks", "tests.sglang.evidence")
collect_ignore_glob = ["platform/*", "data/*"]  # modules of other environments


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.sglang)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of all servers when a test fails."""
    report = yield
    if report.failed:
        report.sections += [(f"log of {one.url or 'a server'}", one.log()) for one in running]
    return report


@pytest.fixture(scope="session", autouse=True)
def _sglang_environment() -> None:
    if PYTHON.exists():
        return
    if os.environ.get("HSSTORE_REQUIRE_SGLANG") == "1":
        pytest.fail("no .venv-sglang: run `make test-sglang`, or make .venv-sglang/ready")
    pytest.skip("NO REAL SGLANG IS TESTED: there is no .venv-sglang; run `make test-sglang`")


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    yield
    while runs:
        run = runs.pop()
        if run.process.poll() is None:
            run.kill()
        run.remove_page()


@pytest.fixture(scope="session")
def room() -> Iterator[Path]:
    """Give a directory in shared memory."""
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def tiny_llama(room: Path) -> Path:
    """Give a random Llama, 256 wide: a row of its 4 slots is 4 KiB in float32."""
    return make_llama(room / "llama")


@pytest.fixture
def new_store(room: Path) -> Iterator[Path]:
    """Give the path of a store that is not there yet."""
    with tempfile.TemporaryDirectory(dir=room) as path:
        yield Path(path) / "store.zarr"


@pytest.fixture(scope="module")
def module_store(room: Path) -> Iterator[Callable[[str], Path]]:
    """Name stores that all tests of a module look at."""
    with tempfile.TemporaryDirectory(dir=room) as path:
        yield lambda name: Path(path) / name


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Give SmolLM2-135M-Instruct, converted from its package."""
    model = ROOT / "demo/model"
    subprocess.run([sys.executable, ROOT / "tools/convert_smollm2.py", model], check=True)
    return model
