"""The order of the tests: what takes long begins first, so that all workers end together.

And what holds for all: no example of Hypothesis fails for the time that it took.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

with suppress(ImportError):  # the trainers' environment has no Hypothesis
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any machine")

_LONG = (
    *("doctor/test_other_host.py", "watchdog/test_frozen_disk.py", "watchdog/test_clock.py"),
    *("extraction/test_real_model.py", "extraction/test_server_wait.py"),
    *("engines/test_sglang_process.py", "extraction/test_crash.py"),
    *("sglang/test_smollm2_float32.py", "trainers/test_speculators.py"),
)
"""Files of a minute and more, each one worker's."""
_SLOW = (
    *("doctor", "watchdog", "faults"),
    *("extraction", "relay", "engines", "objects", "loaders", "consolidate", "semantic", "verify"),
    *("storage", "dataset", "export"),
)
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move long files to the front, then slow folders; within a folder nothing changes."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    if not item.path.is_relative_to(_HERE):
        return len(_LONG) + len(_SLOW)
    path = item.path.relative_to(_HERE)
    if str(path) in _LONG:
        return _LONG.index(str(path))
    folder = path.parts[0]
    return len(_LONG) + (_SLOW.index(folder) if folder in _SLOW else len(_SLOW))
