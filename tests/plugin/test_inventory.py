"""The list of what is touched in SGLang, and the page that explains it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hsstore_sglang.inventory import SYMBOLS, Symbol, find_missing

PAGE = Path(__file__).parents[2] / "docs/sglang-inventory.md"


def test_the_inventory_page_lists_every_symbol() -> None:
    listed = set(re.findall(r"`([\w.]+)`", PAGE.read_text()))

    assert [symbol.name for symbol in SYMBOLS if symbol.name not in listed] == []


@pytest.mark.parametrize(
    ("symbol", "problem"),
    [
        (Symbol("json", "JSONDecoder.decode", ("s",)), None),
        (Symbol("no_such_module", "x"), "no_such_module: cannot be imported"),
        (Symbol("json", "JSONDecoder.encode"), "json: no JSONDecoder.encode"),
        (Symbol("json", "dumps", ("obj", "colour")), "json: dumps has no colour"),
        (Symbol("hsstore_sglang.inventory", "Symbol.module"), None),  # a field without a default
    ],
)
def test_what_is_missing_is_said_in_words(symbol: Symbol, problem: str | None) -> None:
    missing = find_missing([symbol])

    assert len(missing) == (problem is not None)
    assert problem is None or missing[0].startswith(problem)
