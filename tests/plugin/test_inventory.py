"""The list of what is touched in SGLang, and the page that explains it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hsstore_sglang.inventory import STARTING_SYMBOLS, SYMBOLS, Symbol, find_missing

PAGE = Path(__file__).parents[2] / "docs/sglang-inventory.md"


def test_the_inventory_page_lists_every_symbol() -> None:
    listed = set(re.findall(r"`([\w.]+)`", PAGE.read_text()))

    assert [one.name for one in (*SYMBOLS, *STARTING_SYMBOLS) if one.name not in listed] == []


@pytest.mark.parametrize(
    ("symbol", "problem"),
    [
        (Symbol("json", "JSONDecoder.decode", ("s",)), None),
        (Symbol("no_such_module", "x"), "no_such_module: cannot be imported"),
        (Symbol("json", "JSONDecoder.encode"), "json: no JSONDecoder.encode"),
        (Symbol("json", "dumps", ("obj", "colour")), "json: dumps has no colour"),
        (Symbol("hsstore_sglang.inventory", "Symbol.module"), None),  # a field without a default
        (Symbol("json", "JSONEncoder.sort_keys", of_instances=True), None),
        (Symbol("json", "JSONEncoder.colour", of_instances=True), "json: no JSONEncoder.colour"),
        (Symbol("json", "Nothing.colour", of_instances=True), "json: no Nothing.colour"),
    ],
)
def test_what_is_missing_is_said_in_words(symbol: Symbol, problem: str | None) -> None:
    missing = find_missing([symbol])

    assert len(missing) == (problem is not None)
    assert problem is None or missing[0].startswith(problem)
