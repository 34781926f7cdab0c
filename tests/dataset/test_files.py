"""Kinds of files, whole and broken."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from extraction.dataset import DatasetOptions, load_dataset
from extraction.dataset.files import read_records
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORDS: list[dict[str, Any]] = [
    {"id": f"s{i}", "input_ids": [i, i + 1], "loss_mask": [0, 1]} for i in range(600)
]
JSONL = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


def write_arrow(folder: Path, records: list[dict[str, Any]], *, split: str | None = None) -> None:
    """Write what `datasets.Dataset.save_to_disk` writes, in two files."""
    folder.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    table = pa.Table.from_pylist(records)
    half = len(records) // 2
    for name, part in zip(names, (table[:half], table[half:]), strict=True):
        with pa.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_split": split}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), path, row_group_size=100)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("plain.jsonl", lambda path: path.write_bytes(JSONL)),
        (
            "a.jsonl",
            lambda path: path.write_bytes(b"\xef\xbb\xbf" + JSONL.replace(b"\n", b"\r\n\r\n")),
        ),
        ("a.jsonl.gz", lambda path: path.write_bytes(gzip.compress(JSONL))),
        ("a.jsonl.zst", lambda path: path.write_bytes(zstandard.compress(JSONL))),
        (
            "two-frames.zst",
            lambda path: path.write_bytes(
                zstandard.compress(JSONL[:5000]) + zstandard.compress(JSONL[5000:])
            ),
        ),
        ("a.parquet", write_parquet),
        ("folder", lambda path: write_arrow(path, RECORDS)),
    ],
)
def test_every_kind_of_file_gives_the_same_dataset(
    name: str, write: Callable[[Path], object], tmp_path: Path
) -> None:
    write(tmp_path / name)
    plain = tmp_path / "expected.jsonl"
    plain.write_bytes(JSONL)

    dataset, report = load_dataset([tmp_path / name], None, DatasetOptions())

    expected, _ = load_dataset([plain], None, DatasetOptions())
    assert dataset.fingerprint() == expected.fingerprint()
    assert report.kept == len(RECORDS)


def test_a_folder_of_splits_names_the_split_of_each_sample(tmp_path: Path) -> None:
    write_arrow(tmp_path / "data/train", RECORDS[:3], split="train")
    write_arrow(tmp_path / "data/held out", RECORDS[3:5])
    (tmp_path / "data/dataset_dict.json").write_text('{"splits": ["train", "held out"]}')

    dataset, _ = load_dataset([tmp_path / "data"], None, DatasetOptions())

    assert dataset.split_names == ("train", "held out")
    assert dataset.split.tolist() == [0, 0, 0, 1, 1]


def test_absent_fields_of_arrow_structs_are_absent(tmp_path: Path) -> None:
    call = {"function": {"name": "f"}}
    records = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "tool", "tool_calls": [call]}]}
    ]
    write_arrow(tmp_path / "data", records)

    (record,) = read_records(tmp_path / "data")

    assert record.value == records[0]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"input_ids": [1', "not valid JSON"),
        (b'{"id": "\xff"}', "not UTF-8 at byte 9"),
        (b'{"id": "\\ud800"}', "surrogate"),
        (b'{"input_ids": [NaN]}', "NaN is not JSON"),
        (b"[1, 2]", "a JSON object is expected, not list"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_broken_line_is_named_and_can_be_skipped(line: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    good = json.dumps(RECORDS[0]).encode()
    path.write_bytes(good + b"\n" + line + b"\n" + json.dumps(RECORDS[1]).encode())

    with pytest.raises(InputError, match=r"bad.jsonl, line 2: ") as caught:
        load_dataset([path], None, DatasetOptions())
    dataset, report = load_dataset([path], None, DatasetOptions(skip_bad=True))

    assert what in str(caught.value)
    assert len(dataset) == 2
    assert report.drops == {"bad input": 1}
    assert what in report.examples["bad input"][0]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.gz", gzip.compress(JSONL)[:-20], "gzip stream is truncated"),
        ("a.zst", zstandard.compress(JSONL)[:-20], "zstd stream is truncated"),
        ("b.zst", zstandard.compress(JSONL)[:9] + b"\xff" * 50, "zstd stream is corrupt"),
        ("a.parquet", b"PAR1 and nothing else", "cannot be read"),
    ],
)
def test_a_broken_file_is_an_error_even_if_bad_records_are_skipped(
    name: str, content: bytes, what: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(InputError, match=what):
        load_dataset([tmp_path / name], None, DatasetOptions(skip_bad=True))


def test_a_missing_file_and_a_strange_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.jsonl: cannot be read"):
        load_dataset([tmp_path / "nothing.jsonl"], None, DatasetOptions())
    with pytest.raises(InputError, match="not a folder of Hugging Face save_to_disk"):
        load_dataset([tmp_path], None, DatasetOptions())


def test_files_of_the_same_name_get_ids_of_their_own(tmp_path: Path) -> None:
    paths = [tmp_path / "x/data.jsonl.gz", tmp_path / "y/data.jsonl"]
    line = b'{"input_ids": [1], "loss_mask": [1]}'
    for path, content in zip(paths, (gzip.compress(line), line), strict=True):
        path.parent.mkdir()
        path.write_bytes(content)

    dataset, _ = load_dataset(paths, None, DatasetOptions())

    ids = [bytes(row).rstrip(b"\0") for row in dataset.sample_id]
    assert ids == [b"data-1", b"data.2-1"]
