"""Read ahead in order, bounded in bytes."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

T = TypeVar("T")
R = TypeVar("R")

THREADS = 2
"""One waits for the disk while another decodes; each decodes on all cores."""


class Pending(Protocol):
    """A result that will come: a future of threads or of a cluster."""

    def result(self) -> Any:  # noqa: ANN401  # as futures have it
        """Wait for it; raise what was raised."""
        ...

    def cancel(self) -> Any:  # noqa: ANN401
        """Do not wait for it any more."""
        ...


def in_order(
    tasks: Iterable[tuple[int, T]], submit: Callable[[T], Pending], budget_bytes: int
) -> Generator[Any]:
    """Yield the result of each task, in order, while later ones are on their way.

    Parameters
    ----------
    tasks : (bytes of the result, task)
    budget_bytes : int
        Of results that were asked for and not handed over yet. One that is larger comes alone.
    """
    ahead = _Ahead(iter(tasks), submit, budget_bytes)
    try:
        ahead.top_up()
        while ahead.waiting:
            result = ahead.take()
            ahead.top_up()  # before the caller computes with this one
            yield result
            del result
    finally:
        for _, future in ahead.waiting:
            future.cancel()


class _Ahead(Generic[T]):
    """What was asked for and not handed over yet."""

    def __init__(
        self, tasks: Iterator[tuple[int, T]], submit: Callable[[T], Pending], budget_bytes: int
    ) -> None:
        self._tasks = tasks
        self._submit = submit
        self._budget_bytes = budget_bytes
        self._next = next(tasks, None)
        self._held_bytes = 0
        self.waiting: deque[tuple[int, Pending]] = deque()

    def top_up(self) -> None:
        """Ask for what there is room for."""
        while self._next is not None:
            nbytes, task = self._next
            if self.waiting and self._held_bytes + nbytes > self._budget_bytes:
                return
            self.waiting.append((nbytes, self._submit(task)))
            self._held_bytes += nbytes
            self._next = next(self._tasks, None)

    def take(self) -> Any:  # noqa: ANN401  # as futures have it
        """Wait for the first."""
        nbytes, first = self.waiting.popleft()
        self._held_bytes -= nbytes
        return first.result()


def on_threads(
    tasks: Iterable[tuple[int, T]], function: Callable[[T], R], budget_bytes: int
) -> Iterator[R]:
    """Call a function on each task, in threads that end with the iteration."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="batch") as threads:
        results = in_order(tasks, lambda task: threads.submit(function, task), budget_bytes)
        with closing(results):
            yield from results
