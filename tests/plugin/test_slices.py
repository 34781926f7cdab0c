"""Which rows belong to whom."""

from __future__ import annotations

from extraction.spool import RequestId
from hsstore_sglang.slices import Piece, pieces_of


def test_rows_of_others_and_padding_shift_ours_and_are_left_out() -> None:
    ours = "hs-ab-1-0-20"
    rids = ["HEALTH_CHECK_1", ours, "chatcmpl-2", "hs-ab-2-0-5"]

    pieces = pieces_of(rids, [3, 12, 1, 5, 11], [0, 8, 40, 0, 0], RequestId.parse)

    assert pieces == [Piece(ours, 8, 12, 3, last=True), Piece("hs-ab-2-0-5", 0, 5, 16, last=True)]


def test_a_request_without_rows_in_this_forward_has_no_piece() -> None:
    assert pieces_of(["hs-ab-1-0-20"], [0], [20], RequestId.parse) == []


def test_only_the_chunk_that_reaches_the_end_is_the_last() -> None:
    pieces = [
        pieces_of(["hs-ab-1-0-20"], [rows], [start], RequestId.parse)[0].last
        for start, rows in [(0, 19), (0, 20), (19, 1), (18, 1), (15, 9)]
    ]

    assert pieces == [False, True, True, False, True]
