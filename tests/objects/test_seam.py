"""What servers, credentials and listings may do otherwise than one would think."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import fsspec
import numpy as np
import pytest

import hsstore
from hsstore.create import LayoutOptions
from hsstore.errors import InputError, UnreachableError
from hsstore.importing.fetched import FetchedFiles
from hsstore.index import PAGE_SAMPLES, SampleIndex
from hsstore.layout import Geometry
from hsstore.location import RemotePath
from hsstore.objects.client import forget
from hsstore.objects.puts import ABSENT
from hsstore.objects.write import put
from hsstore.spans import write_span
from hsstore.testing.finite import commit_states, finite_states, make_run_record
from hsstore.testing.stores import commit_block, make_store, payload
from hsstore.verify import VerifyOptions, verify_store
from tests.objects.s3 import NAMES, SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from tests.objects.s3 import S3


@pytest.fixture
def stranger(s3: S3, monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[Path]:
    """Take the credentials out of the environment; give the file of the profiles, which is empty."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(directory / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(directory / "config"))
    forget()
    yield directory / "config"
    forget()


def read_with(config: Path, program: str, url: str) -> None:
    config.write_text(f"[default]\ncredential_process = {program}\n")
    hsstore.open(url).completion()


def test_credentials_that_come_later_are_used(
    s3: S3, mixed: Path, stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://states/store.zarr"
    with pytest.raises(InputError, match="no credentials in the environment"):
        hsstore.open(url)

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    assert len(hsstore.open(s3.shared(mixed))) == len(hsstore.open(mixed))


def test_a_program_for_credentials_that_is_missing_is_no_missing_object(
    s3: S3, mixed: Path, stranger: Path
) -> None:
    with pytest.raises(UnreachableError, match="/none/such"):
        read_with(stranger, "/none/such", "s3://states/store.zarr")


def test_credentials_that_are_stale_when_they_come_are_no_damage(
    s3: S3, mixed: Path, stranger: Path
) -> None:
    old = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c"}
    stale = stranger.with_name("stale.json")
    stale.write_text(json.dumps(old | {"Expiration": "2020-01-01T00:00:00Z"}))
    with pytest.raises(InputError, match="still expired"):
        read_with(stranger, f"cat {stale}", "s3://states/store.zarr")


def test_a_public_bucket_needs_no_credentials_where_they_are_declined(
    s3: S3, directory: Path, stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.upload(make_store(directory / "store.zarr", [3, 4]).path, ACL="public-read")
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "YES")

    assert len(hsstore.open(url)) == 2


def test_a_server_that_ignores_versions_gives_no_bytes_of_another_one(
    remote: S3, directory: Path
) -> None:
    """Nothing is compressed: where one sample was, there are as many bytes of another one now."""
    options = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=6, codec="none")
    made = make_store(directory / "one.zarr", [4, 4], options=options)
    shutil.copytree(made.path, directory / "two.zarr")
    commit_block(made, 0, [0, 1])
    url = remote.upload(made.path)
    store = hsstore.open(url)
    _ = store.states(0)
    commit_block(hsstore.open(directory / "two.zarr"), 0, [1, 0])
    remote.put(directory / "two.zarr/hidden_states/c.0.0.0", f"{url}/hidden_states/c.0.0.0")

    remote.fail("any version", "hidden_states", times=10_000)

    for sample in (0, 1):
        np.testing.assert_array_equal(store.states(sample).view("u2"), payload(made, sample))


def test_each_page_of_a_listing_is_tried_again_by_itself(remote: S3, mixed: Path) -> None:
    url = remote.shared(mixed)
    expected = {str(p.relative_to(mixed)) for p in mixed.rglob("*") if p.is_file()}
    assert len(expected) > 20
    pages = (r"list-type=2(?!.*continuation-token)", "continuation-token")
    remote.fail_all([{"what": 503, "where": page, "times": 8} for page in pages])

    assert RemotePath(url).find().keys() == expected


def test_an_answer_that_drips_is_asked_for_again(
    remote: S3, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsstore.objects.pace.READ_SECONDS", 0.3)
    url = remote.shared(mixed)
    remote.fail("drip", "GET .*store.zarr/zarr.json")  # would take minutes

    hsstore.open(url)

    paths = [request["path"] for request in remote.requests()]
    assert len([path for path in paths if path.endswith("store.zarr/zarr.json")]) == 2


def test_a_file_that_comes_in_part_leaves_nothing(
    s3: S3, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsstore.importing.fetched.PIECE_BYTES", 4)
    root = RemotePath(f"s3://states/{next(NAMES)}")
    put(str(root / "x"), bytes(10), replaces=ABSENT)
    s3.fail("reset", "GET .*/x", times=1000, later=1)

    with pytest.raises(UnreachableError):
        FetchedFiles(root, directory).path("x")

    assert list(directory.iterdir()) == []


def test_what_tools_put_for_folders_is_no_part_of_a_store(s3: S3, mixed: Path) -> None:
    url = s3.upload(mixed)
    bucket, _, key = url.removeprefix("s3://").partition("/")
    files = fsspec.filesystem("s3", use_listings_cache=False)
    for name in (f"{key}/", f"{key}/hidden_states/"):
        files.call_s3("put_object", Bucket=bucket, Key=name, Body=b"")

    assert verify_store(url, VerifyOptions()).ok
    assert not [name for name in RemotePath(url).find() if name.endswith("/") or not name]


def test_a_sample_that_is_copied_costs_its_own_bytes(s3: S3, mixed: Path) -> None:
    store = hsstore.open(s3.shared(mixed))
    for sample in np.flatnonzero(store.completion().complete).tolist():
        places = list(store.index.chunks_of(sample, store.index.length[sample]))
        list(store.payload.read_encoded(sample, places))  # indexes are known then
        s3.requests()

        encoded = list(store.payload.read_encoded(sample, places))

        ranges = [request["range"].removeprefix("bytes=").split("-") for request in s3.requests()]
        asked = sum(int(last) + 1 - int(first) for first, last in ranges)
        assert asked == sum(map(len, encoded))
        assert len(ranges) == len({place.shard for place in places})


def test_a_copy_has_no_times_of_its_runs(directory: Path) -> None:
    """A killed run has left states without a bit; a later one ended well, somewhere else in the store."""
    made = make_store(directory / "store.zarr", [3, 4, 5])
    made.record_run(make_run_record("r1", "2026-01-01T00:00:00+00:00", ended=False))
    commit_states(made, {0: finite_states(made, 0)})
    bits = np.zeros(made.spec.layout.span_samples, np.bool_)
    write_span(made.path / "complete/c.0", bits)
    january_2 = 1767312000
    os.utime(made.path / "hidden_states/c.0.0.0", (january_2, january_2))
    made.record_run(make_run_record("r2", "2026-01-03T00:00:00+00:00", ended=True))
    url = f"memory://states/{next(NAMES)}/store.zarr"

    fsspec.filesystem("memory").put(str(made.path), url, recursive=True)

    assert verify_store(made.path, VerifyOptions()).ok
    assert verify_store(url, VerifyOptions()).ok


def test_ids_of_several_pages_are_kept() -> None:
    """Or each sample in random order would be a request of megabytes more."""
    pages: list[int] = []

    def read(_name: str, where: slice) -> npt.NDArray[np.uint8]:
        pages.append(where.start // PAGE_SAMPLES)
        return np.full((PAGE_SAMPLES, 2), ord("x"), np.uint8)

    index = SampleIndex(Geometry(1, 16, 2, 4, 1, 16, 6), read)
    for sample in (0, PAGE_SAMPLES, 1, 2 * PAGE_SAMPLES, PAGE_SAMPLES + 1):
        assert index.sample_id(sample) == "xx"

    assert pages == [0, 1, 2]
