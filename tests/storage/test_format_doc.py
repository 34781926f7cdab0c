"""docs/format.md tells the truth: its Python blocks are run, its layout is ours."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import zarr

from hsstore.create import LayoutOptions
from hsstore.dtype import DTypeName
from hsstore.layout import Geometry, plan_layout
from hsstore.spec import FailureReason, RunRecord, StoreSpec
from hsstore.store import Store
from hsstore.testing.stores import fill_store, make_model, make_store, payload

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"
LENGTHS = [3, 9, 40, 1, 16, 5]


def run_blocks(text: str) -> dict[str, Any]:
    """Run the Python blocks one after the other, sessions with their expected output."""
    names: dict[str, Any] = {}
    for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        source, line = match[1], text[: match.start()].count("\n") + 1
        if source.startswith(">>>"):
            session = doctest.DocTestParser().get_doctest(
                source, names, "format.md", str(DOCUMENT), line
            )
            runner = doctest.DocTestRunner()
            failed = runner.run(session, clear_globs=False).failed
            assert not failed, f"the session at line {line} says something else"
            names.update(session.globs)
        else:
            exec(compile("\n" * line + source, str(DOCUMENT), "exec"), names)
    return names


@pytest.fixture
def document_names(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the document beside its example store, and give the names that it defined."""
    monkeypatch.chdir(directory)
    options = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=4)
    model = make_model(hidden=2048)
    fill_store(make_store(directory / "example.zarr", LENGTHS, model=model, options=options))
    return run_blocks(DOCUMENT.read_text())


def test_every_block_runs_and_its_reader_reads_our_stores(
    document_names: dict[str, Any], directory: Path
) -> None:
    store = Store.open(directory / "example.zarr")

    for sample, tokens in enumerate(LENGTHS):
        start = int(store.layout.row_start[sample])
        bits = document_names["read_bits"](store.path, start, tokens)
        np.testing.assert_array_equal(bits, payload(store, sample))


def test_its_layout_is_ours(document_names: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)

    for _ in range(50):
        length = generator.integers(1, 60, generator.integers(1, 40))
        span = int(generator.integers(1, 50))
        ours = plan_layout(length, Geometry(3, 8, 2, 4, 3, shard_rows=32, span_samples=span))
        row_start, blocks = document_names["layout"](length.tolist(), 4, 32, span)
        assert ours.row_start.tolist() == row_start
        assert list(zip(ours.block_sample[:-1], ours.block_shard[:-1], strict=True)) == blocks


def test_it_names_every_array_attribute_and_reason(document_names: dict[str, Any]) -> None:
    text = DOCUMENT.read_text()
    fields = set(StoreSpec.model_fields) | set(RunRecord.model_fields)
    nested = {"model", "dataset", "layout", "seal"}
    for part in nested:
        annotation = StoreSpec.model_fields[part].annotation
        assert annotation
        fields |= set(annotation.model_fields)

    group = zarr.open_group("example.zarr", mode="r")
    wanted = {*group.array_keys(), *get_args(DTypeName), *fields - nested}

    assert {name for name in wanted if not re.search(rf"`[\w.]*\b{name}[`\"]", text)} == set()
    for reason in FailureReason:
        assert f"| {reason.value} | `{reason.label}` |" in text


def table_of_arrays() -> dict[str, list[str]]:
    """Read the table: data type, shape, chunk, fill and codecs of each array."""
    section = DOCUMENT.read_text().partition("\n## Arrays\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in section.splitlines()]
    table = {row[1].strip("`"): row[2:-1] for row in rows if row[1:2] and row[1].startswith("`")}
    for cells in table.values():
        for column, cell in enumerate(cells):
            if same_as := re.fullmatch(r"as `(\w+)`", cell):
                cells[column] = table[same_as[1]][column]
    return table


def test_its_table_of_arrays_is_that_of_a_store(document_names: dict[str, Any]) -> None:
    table = table_of_arrays()
    group = zarr.open_group("example.zarr", mode="r")

    assert table.keys() == set(group.array_keys())
    for name, array in group.arrays():
        metadata: Any = array.metadata.to_dict()
        types, _, _, fill, codecs = table[name]
        used = metadata["codecs"]
        if codecs.startswith("sharding"):
            assert used[0]["name"] == "sharding_indexed"
            used = used[0]["configuration"]["codecs"]
        assert metadata["data_type"] in re.findall(r"\w+", types), name
        assert str(metadata["fill_value"]).lower() == fill.lower(), name
        assert ", ".join(codec["name"] for codec in used) == codecs.split("inner: ")[-1], name
