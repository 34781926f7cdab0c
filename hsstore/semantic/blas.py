"""One thread a matrix product: tasks run side by side already, and threads that share one wait long."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from threadpoolctl import ThreadpoolController

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = Lock()
_users = 0
_limits: Any = None


@cache
def _controller() -> Any:  # noqa: ANN401  # the package has no types
    """Look for matrix libraries once: that takes milliseconds."""
    return ThreadpoolController()  # type: ignore[no-untyped-call]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit numpy's matrix products to one thread each, in the whole process, while any user is inside."""
    global _users, _limits  # noqa: PLW0603  # the limit is the process's
    with _lock:
        _users += 1
        if _users == 1:
            _limits = _controller().limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _limits.restore_original_limits()
