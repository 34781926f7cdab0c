"""The HTML report: one file, well formed, with every part of what was found."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from hsstore.errors import InputError
from hsstore.verify import VerifyOptions, verify_store
from hsstore.verify.html import check_target, render, write_html
from tests.verify.test_completion import set_value

if TYPE_CHECKING:
    from pathlib import Path

VOID = {"meta"}


class _Tags(HTMLParser):
    """Fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    @override
    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags_of(html: str) -> list[str]:
    parser = _Tags()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser.seen


def test_a_report_has_every_section_and_loads_nothing(damaged: Path) -> None:
    set_value(damaged, "digest", 7, 1, fix_crc=True)
    (damaged / "strange & <b>odd").touch()

    html = render(verify_store(damaged))

    tags = tags_of(html)
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "What is bad",
        "Coverage",
        "Lengths",
        "Norms",
        "Findings",
    ]
    assert tags.count("svg") == 2 + 3  # a profile for each slot
    assert "strange &amp; &lt;b&gt;odd" in html
    assert "chat/7/ä" in html
    assert not set(tags) & {"script", "link", "img", "iframe"}
    assert "http" not in html


def test_a_healthy_store_has_no_findings_to_show(healthy: Path) -> None:
    html = render(verify_store(healthy))

    assert re.findall(r"<h2>(.*?)</h2>", html) == ["Coverage", "Lengths", "Norms"]
    assert "10 complete" not in html
    assert "1 complete, 0 failed, 0 bad" in html


def test_a_store_that_cannot_be_opened_has_a_report_too(damaged: Path) -> None:
    (damaged / "zarr.json").write_text("{")

    html = render(verify_store(damaged))

    tags_of(html)
    assert "zarr.json is damaged" in html


def test_a_repaired_store_says_what_was_done(damaged: Path, tmp_path: Path) -> None:
    set_value(damaged, "digest", 7, 1, fix_crc=True)

    write_html(verify_store(damaged, VerifyOptions(repair=True)), tmp_path / "report.html")

    html = (tmp_path / "report.html").read_text()
    assert "Repaired: 1 samples are pending now" in html
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    "name", ["store.zarr", "store.zarr/report.html", "nowhere/report.html", "."]
)
def test_a_place_where_no_report_can_be_written_is_wrong_input(damaged: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"--html .*report|--html"):
        check_target(damaged.parent / name, damaged)
