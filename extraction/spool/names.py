"""Request ids: `hs-<run>-<sample>-<attempt>-<T>`, the key of everything in a spool.

The id carries the number of rows because a server cannot know it from a first chunk. It is safe as
a file name by construction, and each id has exactly one spelling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RID = re.compile(
    r"hs-([a-z0-9]{1,32})-(0|[1-9][0-9]{0,14})-(0|[1-9][0-9]{0,8})-([1-9][0-9]{0,11})"
)


@dataclass(frozen=True, slots=True, order=True)
class RequestId:
    """One sending of one sample.

    >>> str(RequestId(run="0123456789ab", sample=7, attempt=0, rows=512))
    'hs-0123456789ab-7-0-512'
    """

    run: str
    """Token of the client's run, `[a-z0-9]{1,32}`: the server captures only its own client's."""
    sample: int
    """Index of the sample, >= 0."""
    attempt: int
    """Counts the sendings of this sample, from 0. A server captures no id twice: also a request
    that is sent again through no fault of its own needs the next number."""
    rows: int
    """T, the tokens of the sample, >= 1."""

    def __post_init__(self) -> None:
        if _RID.fullmatch(str(self)) is None:
            raise ValueError(f"not a valid request id: {self}")

    # typing.override comes with Python 3.12, and nothing but the standard library is here.
    def __str__(self) -> str:  # type: ignore[explicit-override]
        return f"hs-{self.run}-{self.sample}-{self.attempt}-{self.rows}"

    @staticmethod
    def is_one(text: str) -> bool:
        """Tell whether a text is an id; cheaper than reading it."""
        return _RID.fullmatch(text) is not None

    @classmethod
    def parse(cls, text: str) -> RequestId | None:
        """Read an id; None for anything that is not exactly one.

        >>> RequestId.parse("hs-0123456789ab-7-0-512").rows
        512
        >>> RequestId.parse("hs-0123456789ab-07-0-512") is None
        True
        """
        match = _RID.fullmatch(text)
        if match is None:
            return None
        run, sample, attempt, rows = match.groups()
        return cls(run, int(sample), int(attempt), int(rows))
