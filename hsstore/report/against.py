"""What `hsstore verify --against` reports: the states of a few samples, asked for again."""

from __future__ import annotations

from typing import Literal

from hsstore.spec import Record

AgainstVerdict = Literal["equal", "same", "rows", "differs", "not-compared"]
"""`equal`: bit by bit; `same`: within the tolerance; `rows`: single rows are beyond it, as where two
experts of a mixture are nearly tied; `differs`: the median row is, or many rows in a row are;
`not-compared`: the server did not give these states, or the store could not."""


class AgainstSlot(Record):
    """How one slot compares, over all samples. Differences are relative, in the 2-norm of a row."""

    slot: int
    name: str
    """Such as `layer 14`, or `final`."""
    equal: float
    """Share of the values that are equal bit by bit."""
    median: float
    """The median row of a sample; the largest of any sample."""
    mean: float
    worst: float
    """The row that differs most."""
    cosine: float
    """Of the stored row and the new one; the mean."""
    least_cosine: float
    tolerance: float
    """The difference of a median row that rounding in this dtype, or the server's own noise, explains."""
    verdict: AgainstVerdict


class AgainstSample(Record):
    """How one sample compares."""

    sample: int
    sample_id: str
    rows: int
    verdict: AgainstVerdict
    detail: str
    """What is beyond the tolerance, or why nothing was compared."""


class AgainstReport(Record):
    """Stored states against those that a server computes now."""

    ok: bool
    """No sample differs, and at least one was compared."""
    server: str
    """Its URL."""
    engine: str
    """With its version."""
    seed: int
    """That the samples were chosen by."""
    compared: int
    bit_equal: int
    """Samples of which all states are equal bit by bit."""
    golden: float | None
    """Largest difference of the median row of the store's golden prefix; None where it has none."""
    floor: float
    """Largest difference of the median row of a sample that was asked for twice."""
    slots: tuple[AgainstSlot, ...]
    samples: tuple[AgainstSample, ...]
