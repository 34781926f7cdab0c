"""The order of the tests: those that wait for disks and servers first, so that both workers end together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_SLOW = ("faults", "watchdog", "relay", "extraction", "engines", "objects")
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move slow folders to the front; within a folder nothing changes."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    folder = item.path.relative_to(_HERE).parts[0] if item.path.is_relative_to(_HERE) else ""
    return _SLOW.index(folder) if folder in _SLOW else len(_SLOW)
