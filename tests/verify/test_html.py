"""The HTML report: one file, well formed, with every part of what was found."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from hsstore.errors import InputError
from hsstore.report import (
    AgainstReport,
    AgainstSample,
    AgainstSlot,
    SemanticBad,
    SemanticKind as Kind,
    SemanticReport,
)
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


def test_what_a_model_and_a_server_say_has_sections_too(healthy: Path) -> None:
    slot = AgainstSlot(
        slot=1,
        name="layer 14",
        equal=0.25,
        median=0.5,
        mean=0.5,
        worst=0.75,
        cosine=0.875,
        least_cosine=0.5,
        tolerance=0.03125,
        verdict="differs",
    )
    odd = AgainstSample(
        sample=3, sample_id="<three>", rows=9, verdict="differs", detail="layer 14 by 50%"
    )
    against = AgainstReport(
        ok=False,
        server="https://server",
        engine="sglang 1",
        seed=0,
        compared=1,
        bit_equal=0,
        golden=None,
        floor=0.0,
        slots=(slot,),
        samples=(odd,),
    )
    wrong = SemanticBad(
        sample=None, sample_id=None, kind=Kind.WRONG_MODEL, slots=(0, 1), detail="another run's"
    )
    semantic = SemanticReport(
        ok=False,
        model_dir="model",
        norm="RMSNorm",
        seed=0,
        samples=10,
        unreadable=0,
        tokens=99,
        rows_fitted=0,
        checks=(),
        by_kind={Kind.WRONG_MODEL: 1},
        bad=(wrong,),
    )
    report = verify_store(healthy).with_section("semantic", semantic)

    html = render(report.with_section("against", against))

    tags_of(html)
    assert re.findall(r"<h2>(.*?)</h2>", html)[-2:] == ["Meaning", "Against a server"]
    assert re.findall(r'<span class="bad">(.*?)</span>', html) == [
        "bad: see below",
        "1 bad",
        "differs",
    ]
    for part in ("another run&#39;s", "&lt;three&gt;", "layer 14 by 50%", "25.00%", "0.87500"):
        assert part in html


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
