"""`--data` under a URL: the samples of the same files on a disk, whatever happens on the way."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from extraction.dataset import DatasetOptions, load_dataset
from extraction.dataset.files import read_records
from extraction.options import DataOptions, ExtractOptions
from extraction.regenerate.prompts import read_prompts
from hsstore.errors import InputError, UnreachableError
from hsstore.location import RemotePath
from tests.command import command
from tests.dataset.test_files import JSONL, RECORDS, write_arrow

if TYPE_CHECKING:
    from typer.testing import Result

    from tests.objects.s3 import S3

KINDS = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "empty.jsonl", "folder", "splits"]
PIECE_BYTES = 1000
"""A fraction of the files."""


@pytest.fixture
def files(directory: Path) -> Path:
    """Give the same records in all kinds of files."""
    path = directory / "data"
    write_arrow(path / "folder", RECORDS)
    write_arrow(path / "splits" / "eval", RECORDS)
    (path / "splits" / "dataset_dict.json").write_text('{"splits": ["eval"]}')
    (path / "a.jsonl").write_bytes(JSONL)
    (path / "a.jsonl.gz").write_bytes(gzip.compress(JSONL))
    (path / "a.jsonl.zst").write_bytes(zstandard.compress(JSONL))
    (path / "empty.jsonl").touch()
    pq.write_table(pa.Table.from_pylist(RECORDS), path / "a.parquet", row_group_size=100)
    return path


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each file come in several pieces."""
    monkeypatch.setattr("hsstore.objects.stream.PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr("extraction.dataset.files.READ_BYTES", PIECE_BYTES)


@pytest.mark.usefixtures("pieces")
def test_all_kinds_of_files_hold_under_a_url_what_they_hold_on_a_disk(
    remote: S3, files: Path
) -> None:
    url = RemotePath(remote.upload(files))
    for kind in KINDS:
        here, there = list(read_records(files / kind)), list(read_records(url / kind))

        assert [(one.number, one.unit, one.value, one.split) for one in there] == [
            (one.number, one.unit, one.value, one.split) for one in here
        ]
        assert len(here) == (0 if kind == "empty.jsonl" else len(RECORDS))
        assert all(one.location.startswith(str(url / kind)) for one in there)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("what", [500, 503, "reset", "cut"])
def test_a_piece_that_fails_is_brought_again(remote: S3, files: Path, what: int | str) -> None:
    url = RemotePath(remote.upload(files)) / "a.jsonl"
    remote.fail(what, r"GET .*a\.jsonl", times=5, later=1)

    assert [one.value for one in read_records(url)] == RECORDS
    pieces = -(-len(JSONL) // PIECE_BYTES)
    assert len(remote.requests()) == pieces + 5


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("kind", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "folder"])
def test_a_store_that_goes_away_is_no_end_of_the_data(remote: S3, files: Path, kind: str) -> None:
    url = RemotePath(remote.upload(files)) / kind
    remote.fail("reset", f"GET .*{kind}", times=10_000, later=1)

    with pytest.raises(UnreachableError, match=f"cannot read {url}.*tried 9 times"):
        list(read_records(url))


@pytest.mark.usefixtures("pieces")
def test_what_is_replaced_while_it_is_read_is_refused(remote: S3, files: Path) -> None:
    url = RemotePath(remote.upload(files)) / "a.jsonl"
    records = read_records(url)
    next(records)
    remote.write(str(url), JSONL + b"\n")

    with pytest.raises(InputError, match=f"{url}: cannot be read: .*was replaced"):
        list(records)


def test_what_is_not_there_or_not_for_us_is_wrong_input_and_named(remote: S3, files: Path) -> None:
    bucket = f"{remote.protocol}://states"
    remote.upload(files)
    for url, fault, said in (
        (remote.new("none.jsonl"), None, "there is no such object, and no folder"),
        (f"{remote.protocol}://no-such-bucket/a.jsonl", None, "NoSuchBucket"),
        (remote.new("a.jsonl"), 403, "AccessDenied"),
        (bucket, None, "there is no such object, and no folder"),
    ):
        if fault:
            remote.fail(fault, "GET", times=1)
        with pytest.raises(InputError, match=said) as caught:
            list(read_records(RemotePath(url)))
        assert url in str(caught.value)


def test_samples_without_an_id_are_named_as_on_a_disk(remote: S3, directory: Path) -> None:
    folder = directory / "data"
    folder.mkdir()
    text = '{"input_ids": [1, 2], "loss_mask": [0, 1]}\n' * 3
    (folder / "chats.v1.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    url = RemotePath(remote.upload(folder))

    here, there = (
        load_dataset([place / "chats.v1.jsonl.gz"], None, DatasetOptions())[0]
        for place in (folder, url)
    )

    assert there.sample_id[0].tobytes() == b"chats.v1-1"
    assert here.fingerprint() == there.fingerprint()


def test_a_worker_is_told_urls_and_paths_alike() -> None:
    places = RemotePath("s3://b/a.jsonl"), Path("b.jsonl")
    options = ExtractOptions(store=Path("s.zarr"), data=DataOptions(files=places))

    assert ExtractOptions.model_validate_json(options.model_dump_json()).data.files == places


def test_plan_and_regenerate_read_their_data_under_a_url(remote: S3, directory: Path) -> None:
    folder = directory / "data"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8, "num_hidden_layers": 8}')
    (folder / "a.jsonl").write_text('{"input_ids": [1, 2], "loss_mask": [1, 1]}\n')
    (folder / "prompts.jsonl").write_text('{"prompt": "who?"}\n')
    url = RemotePath(remote.upload(folder))

    plans = [
        command("plan", "--data", place / "a.jsonl", "--model", folder) for place in (folder, url)
    ]
    prompts = [
        read_prompts(place / "prompts.jsonl", {}, limit=None, skip_bad=False).good
        for place in (folder, url)
    ]

    assert plans[0].exit_code == plans[1].exit_code == 0, plans[1].output
    assert plans[0].stdout.splitlines()[:2] == plans[1].stdout.splitlines()[:2]
    assert prompts[0][0].sample_id == prompts[1][0].sample_id == "prompts-1"
    assert prompts[0][0].fingerprint == prompts[1][0].fingerprint


def test_the_plan_of_a_store_under_a_url_counts_objects_and_the_room_in_the_stage(
    remote: S3, directory: Path
) -> None:
    (directory / "config.json").write_text('{"hidden_size": 8, "num_hidden_layers": 8}')
    (directory / "a.jsonl").write_text('{"input_ids": [1, 2], "loss_mask": [1, 1]}\n')
    stage = directory / "stage"

    def plan(store: str) -> Result:
        arguments = ("--data", directory / "a.jsonl", "--model", directory, "--stage", stage)
        return command("plan", "--store", store, *arguments)

    url, bucket = remote.new("s.zarr"), f"{remote.protocol}://states"
    found, whole = plan(url), plan(bucket)
    missing = plan(f"{remote.protocol}://no-such-bucket/s.zarr")
    asked = [one["method"] for one in remote.requests() if "s.zarr" in one["path"]]
    remote.fail(403, "s.zarr", times=1)
    forbidden = plan(url)

    assert found.exit_code == 0, found.output
    assert "GB stored in 4 objects" in found.stdout
    assert "GB free in the stage" in found.stdout
    assert not stage.exists()
    assert (whole.exit_code, f"such as {bucket}/states.zarr" in whole.stderr) == (2, True)
    assert (missing.exit_code, forbidden.exit_code) == (2, 2), missing.output
    assert "NoSuchBucket" in missing.stderr
    assert f"{url}" in forbidden.stderr
    assert not {"PUT", "POST"} & {*asked}
