"""What a rule finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hsstore.verdict import Verdict

RERUN = "run the same `hsstore extract` command again"


def span(seconds: float) -> str:
    """Say how long something has been, as people do.

    >>> span(7.4), span(300), span(9000)
    ('7 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Finding(NamedTuple):
    """A verdict, why in one sentence, and what to do."""

    verdict: Verdict
    summary: str
    advice: str
