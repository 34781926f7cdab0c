"""Request ids."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from extraction.spool import RequestId


@given(
    run=st.from_regex(r"[a-z0-9]{1,32}", fullmatch=True),
    sample=st.integers(0, 10**15 - 1),
    attempt=st.integers(0, 10**9 - 1),
    rows=st.integers(1, 10**12 - 1),
)
def test_an_id_survives_being_written_and_read(
    run: str, sample: int, attempt: int, rows: int
) -> None:
    rid = RequestId(run, sample, attempt, rows)

    assert RequestId.parse(str(rid)) == rid
    assert "/" not in str(rid)
    assert len(str(rid)) < 100


@given(st.text())
def test_whatever_parses_is_the_one_spelling_of_its_id(text: str) -> None:
    rid = RequestId.parse(text)

    assert rid is None or str(rid) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hs-ab-1-0-0",
        "hs-ab-01-0-5",
        "hs-AB-1-0-5",
        "hs-ab-1-0-5\n",
        "hs-ab-1-0-5/../x",
        "hs-ab-\u0661-0-5",
        "hs-ab--1-0-5",
        "HEALTH_CHECK_1",
        "hs-ab-1-0-5_0",
    ],
)
def test_alien_ids_are_not_ours(text: str) -> None:
    assert RequestId.parse(text) is None


def test_an_id_that_could_not_be_read_back_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="not a valid request id"):
        RequestId("not/a/run", 0, 0, 1)
