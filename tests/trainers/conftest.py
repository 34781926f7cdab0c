"""The published trainers of other projects, on the CPU, reading stores and exports of a tiny model.

They run in an environment of their own, with hsstore installed beside them: `make test-trainers`.
"""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hsstore.store import Store

INSTALLED = find_spec("specforge") is not None
collect_ignore = ["cpu.py"]  # a program, which changes what it runs
if INSTALLED:
    import fsspec
    import torch

    from hsstore.export import Options, export_store
    from tests.trainers import tiny

    torch.set_num_threads(1)
else:
    here = Path(__file__).parent
    collect_ignore += [str(path) for path in here.glob("*.py") if path.stem != "test_environment"]
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Let other projects warn."""
    if INSTALLED:
        config.addinivalue_line("filterwarnings", "ignore")


@pytest.fixture(scope="session")
def room() -> Iterator[Path]:
    """Give a directory in shared memory."""
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def model(room: Path) -> Any:
    """Give the tiny target; its folder is `room / "target"`."""
    return tiny.make_target(room / "target")


@pytest.fixture(scope="session")
def stores(room: Path, model: Any) -> dict[str, Store]:
    """Give two stores of the same samples: final states after the norm, and before it."""
    return {
        "post-norm": tiny.make_store(room / "post.zarr", model, "post-norm"),
        "pre-norm": tiny.make_store(room / "pre.zarr", model, "pre-norm"),
    }


@pytest.fixture(scope="session")
def at_url(stores: dict[str, Store]) -> dict[str, str]:
    """Give the URLs of the same stores in memory: what reads an object store, without a server."""
    urls = {final: f"memory://trained/{final}.zarr" for final in stores}
    files: Any = fsspec.filesystem("memory")  # type: ignore[no-untyped-call]
    for final, url in urls.items():
        files.put(str(stores[final].path), url, recursive=True)
    return urls


@pytest.fixture(scope="session")
def exported(room: Path, stores: dict[str, Store]) -> Callable[[Any, str], Path]:
    """Give exports, each written once: of a format, and of a store."""

    def export(trainer: Any, final: str) -> Path:
        directory = room / f"{trainer}-{final}"
        if not directory.exists():
            options = Options(
                trainer, draft_vocabulary=tiny.DRAFT_VOCABULARY, model=room / "target"
            )
            export_store(stores[final].path, directory, options)
        return directory

    return export
