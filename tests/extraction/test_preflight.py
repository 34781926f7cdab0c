"""Whether a run can work, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from extraction.preflight import Preflight, Space, free_space, preflight
from extraction.spool import DUMP_OVERHEAD_BYTES
from hsstore.create import layout_for
from hsstore.errors import RefusedError
from hsstore.testing.stores import SMALL_LAYOUT, make_model

if TYPE_CHECKING:
    from pathlib import Path

MODEL = make_model()
ROW_BYTES = MODEL.slots * MODEL.hidden * 2
LENGTH = np.array([3, 4, 5, 1, 18, 2, 9], np.int32)
PLENTY = Space(1 << 40, 1 << 30)


def check(pending: Any = True, **changes: Any) -> Preflight:  # noqa: FBT002  # numpy's all or some
    """Check a store of seven samples; the fifth is longer than a shard."""
    arguments: dict[str, Any] = {
        "space": PLENTY,
        "spool_budget_bytes": 1 << 20,
        "memory_bytes": 1 << 20,
        "memory_free_bytes": 1 << 30,
        "skip_too_large": False,
    }
    layout = layout_for(LENGTH, MODEL, SMALL_LAYOUT)
    mask = np.broadcast_to(np.array(pending, np.bool_), LENGTH.shape)
    return preflight(layout, LENGTH, mask, **(arguments | changes))


def test_what_a_run_needs_is_counted() -> None:
    report = check()

    report.refuse_problems()
    assert (report.samples, report.tokens, report.bytes_raw) == (7, 42, 42 * ROW_BYTES)
    # Four chunks a shard: s0 s1 s2 | s3 | s4 takes two alone | s5, and the span ends | s6.
    assert report.shards == 6
    assert report.largest_dump_bytes == 18 * (ROW_BYTES + 4) + DUMP_OVERHEAD_BYTES
    assert report.lines()[0].startswith("7 samples, 42 tokens: 0.000 GB raw")


def test_only_what_is_pending_counts() -> None:
    report = check([0, 0, 0, 0, 0, 0, 1])

    assert (report.samples, report.tokens, report.shards) == (1, 9, 1)
    assert report.largest_dump_bytes == 9 * (ROW_BYTES + 4) + DUMP_OVERHEAD_BYTES


def test_nothing_pending_needs_nothing() -> None:
    report = check(pending=False)

    assert (report.samples, report.shards, report.largest_dump_bytes) == (0, 0, 0)
    assert report.problems == ()


@pytest.mark.parametrize("budget", ["spool_budget_bytes", "memory_bytes"])
def test_a_sample_that_fits_no_budget_is_a_problem_or_on_demand_a_warning(budget: str) -> None:
    limit = 9 * (ROW_BYTES + 4) + DUMP_OVERHEAD_BYTES

    fits = check(pending=LENGTH <= 9, **{budget: limit})
    refused = check(**{budget: limit})
    skipped = check(**{budget: limit}, skip_too_large=True)

    assert fits.too_large == ()
    assert refused.too_large == skipped.too_large == (4,)
    with pytest.raises(RefusedError, match=rf"1 samples .* is sample 4\) need up to .*{limit:,}"):
        refused.refuse_problems()
    skipped.refuse_problems()
    assert "they will be marked as failed" in skipped.lines()[-1]


def test_a_disk_that_cannot_hold_the_store_is_a_problem_and_a_tight_one_a_warning() -> None:
    raw = 42 * ROW_BYTES

    assert check(space=Space(raw, None)).lines()[2:] == []
    assert "it will be tight" in check(space=Space(raw - 1, None)).lines()[2]
    with pytest.raises(RefusedError, match="GB are free"):
        check(space=Space(raw // 2, None)).refuse_problems()


def test_a_memory_budget_beyond_what_is_free_is_a_warning() -> None:
    report = check(memory_free_bytes=1000)

    report.refuse_problems()
    assert "1,000 are free: lower it with --memory-gb" in report.lines()[-1]


def test_a_file_system_without_inodes_is_a_problem() -> None:
    files = check().files

    check(space=Space(1 << 40, files)).refuse_problems()
    with pytest.raises(RefusedError, match=f"{files} files are needed, the file system has 2"):
        check(space=Space(1 << 40, 2)).refuse_problems()


def test_space_is_that_of_the_place_where_the_store_will_be(tmp_path: Path) -> None:
    assert free_space(tmp_path / "not" / "there" / "yet").free_bytes > 0


def test_before_an_object_store_only_what_is_on_its_way_needs_room_here() -> None:
    full = Space(1 << 20, 1)
    report = check(space=full, staged_shard_bytes=1024)
    report.refuse_problems()
    cramped = check(space=Space(100, 1), staged_shard_bytes=1)

    assert report.bytes_free == 1 << 20
    need, have, *_ = report.lines()
    assert ("GB free in the stage" in have, need.endswith("objects")) == (True, True)
    assert "name another directory with --stage" in cramped.problems[0]
    with pytest.raises(RefusedError, match="more, and at least"):
        check(space=Space(100, 1)).refuse_problems()
