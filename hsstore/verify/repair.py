"""Make samples pending again whose states are bad: the one thing that verify ever writes.

Whole completion files are replaced, the one of `complete` first: a crash in between leaves samples
pending, as they should be. What is not a completion file is not touched.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.claims import Claims
from hsstore.report import BadKind, Repair
from hsstore.spans import write_span
from hsstore.spec import COMPLETION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from hsstore.store import Store
    from hsstore.verify.completion import SpanState
    from hsstore.verify.finding import Ledger

UNTRUSTED = {BadKind.METADATA, BadKind.PLAN}
REFUSAL = "the plan or a zarr.json is bad, so good states may look wrong: mend that first"


@contextmanager
def claimed(store: Store) -> Iterator[str]:
    """Own the whole store, so that nobody writes what is being looked at; yield the name of the claim.

    Raises
    ------
    RefusedError
        A run holds a part of it.
    """
    run = f"repair-{uuid.uuid4().hex[:12]}"
    with Claims(store, run) as claims:
        claims.take(range(store.layout.spans))
        yield run


def clear_bits(store: Store, spans: Sequence[SpanState], ledger: Ledger) -> Repair:
    """Clear the bits and digests of repairable samples, span by span.

    A completion file that is damaged is written anew from the values that have proven right. Where it is that
    of `failed`, nothing can prove them: samples that are marked as failed become pending. Nothing is done
    where the plan or a zarr.json is bad: good states can look wrong then.
    """
    if ledger.counts.keys() & UNTRUSTED:
        return Repair(cleared=0, files=0, left=ledger.total, refused=REFUSAL)
    cleared = files = 0
    for span in spans:
        bad = ledger.repairable[span.samples.start : span.samples.stop]
        if bad.any() or span.damaged:
            files += _rewrite(store, span, bad)
            cleared += int(bad.sum())
    return Repair(cleared=cleared, files=files, left=_left(spans, ledger))


def _left(spans: Sequence[SpanState], ledger: Ledger) -> int:
    """Count the findings that stay. Damage to a completion file that names no sample is mended too."""
    left = ledger.total - sum(count.repairable for count in ledger.counts.values())
    unexplained = sum(
        len(span.damaged)
        for span in spans
        if not ledger.wrong_bit[span.samples.start : span.samples.stop].any()
    )
    return left - unexplained


def _rewrite(store: Store, span: SpanState, bad: npt.NDArray[np.bool_]) -> int:
    """Write the files of a span that have to change; return how many."""
    old = span.completion
    is_marked = "failed" in span.damaged or (bad & old.complete)
    new = {
        "complete": old.complete & ~bad,
        "failed": np.where(is_marked, 0, old.failed),
        "digest": np.where(bad, 0, old.digest),
    }
    files = 0
    for name in COMPLETION:
        if name in span.damaged or not np.array_equal(new[name], getattr(old, name)):
            path = store.location / name / f"c.{span.span}"
            values = _padded(new[name], getattr(old, name), store)
            write_span(path, values, span.versions[name])
            files += 1
    return files


def _padded(values: npt.NDArray[Any], like: npt.NDArray[Any], store: Store) -> npt.NDArray[Any]:
    """Return values for all places of a span's file, which go on behind the last sample of the store."""
    whole = np.zeros(store.spec.layout.span_samples, like.dtype)
    whole[: len(values)] = values
    return whole
