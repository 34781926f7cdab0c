"""Which of the errors that ended a group of tasks to report."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def first_of(errors: BaseExceptionGroup[BaseException], *kinds: type[Exception]) -> BaseException:
    """Return an error of the first kind that is there; else the first that is no cancellation.

    >>> first_of(ExceptionGroup("", [KeyError(), ExceptionGroup("", [OSError()])]), OSError)
    OSError()
    """
    flat = [error for error in _flatten(errors) if not isinstance(error, asyncio.CancelledError)]
    ranked = [error for kind in kinds for error in flat if isinstance(error, kind)]
    return [*ranked, *flat][0]


def _flatten(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flatten(error)
        else:
            yield error
