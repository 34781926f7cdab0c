"""Commands that write under a URL: what they write is what they write on a disk, also after any kill."""

from __future__ import annotations

import json
import multiprocessing
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest

import hsstore
import hsstore.cli
from extraction.staging import is_there
from hsstore.claim import Claim
from hsstore.consolidate import consolidate
from hsstore.errors import InputError, RefusedError
from hsstore.export.place import place_of
from hsstore.export.record import new_record, read_record
from hsstore.location import RemotePath, locate
from hsstore.objects.puts import ABSENT, ConflictError
from hsstore.objects.write import Upload, find_uploads, head, put
from hsstore.report import ExportRequest
from hsstore.testing.finite import commit_states, finite_states
from hsstore.testing.invariants import complete_samples, encoded_sample
from hsstore.testing.stores import make_store
from hsstore.verify import VerifyOptions, verify_store
from tests.command import command
from tests.objects.s3 import NAMES, S3, files_of

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event
    from pathlib import Path

    from hsstore.objects.puts import UploadId


def new_url(server: S3, name: str = "new.zarr") -> RemotePath:
    return RemotePath(server.new(name))


def check_same(there: RemotePath, here: Path) -> None:
    one, other = hsstore.open(there), hsstore.open(here)
    assert complete_samples(one) == complete_samples(other)
    np.testing.assert_array_equal(one.completion().digest, other.completion().digest)
    for sample in complete_samples(other):
        assert encoded_sample(one, sample) == encoded_sample(other, sample)
        assert one.sample_id(sample) == other.sample_id(sample)


@pytest.fixture
def small(directory: Path) -> Path:
    """Give a store of three samples in two blocks."""
    store = make_store(directory / "small.zarr", [3, 9, 5])
    commit_states(store, {sample: finite_states(store, sample) for sample in range(3)})
    return store.path


# --- consolidate --------------------------------------------------------------------------------


def test_a_store_that_is_consolidated_under_a_url_is_that_on_a_disk(
    remote: S3, mixed: Path, directory: Path
) -> None:
    url = new_url(remote)
    there = command("consolidate", mixed, url, "--json")
    here = command("consolidate", mixed, directory / "new.zarr", "--json", "--link", "never")

    assert there.exit_code == here.exit_code == 0, there.output
    check_same(url, directory / "new.zarr")
    assert find_uploads(str(url)) == []
    report = json.loads(there.stdout)
    assert report["path"] == str(url)
    assert report["bytes_free"] is None
    remote.requests()
    again = command("consolidate", mixed, url, "--json", "--no-verify")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["resumed"]
    assert not [one for one in remote.requests() if "hidden_states/c" in one["path"]]
    refused = command("consolidate", mixed, url, "--order", "length")
    assert refused.exit_code == 3, refused.output


@pytest.mark.parametrize(
    "where",
    [
        "PUT .*/runs/.*/digest/c",
        "POST .*/hidden_states/.*uploadId",
        "PUT .*/complete/c",
    ],
)
def test_the_same_command_goes_on_where_one_was_killed(remote: S3, small: Path, where: str) -> None:
    url = new_url(remote)
    context = multiprocessing.get_context("fork")
    ready = context.Event()

    def die(ready: Event) -> None:
        ready.wait(60)
        consolidate([small], url)

    child = context.Process(target=die, args=(ready,))
    child.start()
    remote.fail("kill", where, pid=child.pid)
    ready.set()
    child.join(120)
    assert child.exitcode == -9
    remote.fail("", "", times=0)

    report = consolidate([small], url)

    assert report.ok, report.verification
    assert report.complete == 3
    assert find_uploads(str(url)) == []


def test_an_outage_while_a_store_is_consolidated_ends_with_75_and_loses_nothing(
    remote: S3, small: Path
) -> None:
    url = new_url(remote)
    remote.fail("after", "POST .*/hidden_states/.*uploadId", times=10_000)
    ended = command("consolidate", small, url)
    assert ended.exit_code == 75, ended.output
    assert f"cannot write {url}/hidden_states/c." in ended.stderr
    remote.fail("", "", times=0)

    assert command("consolidate", small, url).exit_code == 0
    assert find_uploads(str(url)) == []


def test_who_was_taken_over_leaves_the_uploads_of_his_heir(s3: S3, small: Path) -> None:
    url = new_url(s3)
    shard = f"{url}/hidden_states/c.0.0.0"

    def take_over(done: int, _total: int) -> None:
        if not done:
            claim = str(url.parent / f"{url.name}.runs/claims/0")
            found = head(claim)
            assert found is not None
            put(claim, Claim.of_this_process("heir").text(), replaces=found.version)
            Upload(shard, replaces=ABSENT)
            his.extend(find_uploads(shard))

    his: list[UploadId] = []
    with pytest.raises(RefusedError, match="was taken over by run heir"):
        consolidate([small], url, bars=lambda _: nullcontext(take_over))

    assert len(his) == 1
    assert his[0] in find_uploads(shard)


def test_a_whole_bucket_is_no_store_and_nothing_is_put_there(s3: S3, small: Path) -> None:
    files = fsspec.filesystem("s3", use_listings_cache=False)
    files.mkdir("s3://whole")
    with pytest.raises(
        InputError, match=r"s3://whole is a bucket: .* such as s3://whole/states\.zarr"
    ):
        consolidate([small], locate("s3://whole"))
    with pytest.raises(InputError, match="is a bucket"):
        is_there(locate("s3://whole"))  # what extract and import ask first
    refused = command("status", "s3://whole")
    assert refused.exit_code == 2
    assert "s3://whole is a bucket: " in refused.stderr
    assert files.find("s3://whole") == []


def test_a_destination_within_a_source_is_refused(s3: S3) -> None:
    url = new_url(s3)
    refused = command("consolidate", url, url / "inner.zarr")
    assert refused.exit_code == 2
    assert "one lies within the other" in refused.stderr


# --- verify --repair ----------------------------------------------------------------------------


def damage(remote: S3, mixed: Path, directory: Path) -> RemotePath:
    url = locate(remote.upload(mixed))
    assert isinstance(url, RemotePath)
    shard = directory / "shard"
    data = bytearray((mixed / "hidden_states" / "c.0.0.0").read_bytes())
    data[10] ^= 1
    shard.write_bytes(data)
    remote.put(shard, f"{url}/hidden_states/c.0.0.0")
    return url


def test_repair_makes_bad_samples_under_a_url_pending(
    remote: S3, mixed: Path, directory: Path
) -> None:
    url = damage(remote, mixed, directory)
    found = command("verify", url, "--repair", "--json")

    assert found.exit_code == 1, found.output
    report = json.loads(found.stdout)
    bad = {one["sample"] for one in report["bad"]}
    assert report["repair"]["cleared"] == len(bad) == 1
    assert complete_samples(hsstore.open(url)) == complete_samples(hsstore.open(mixed)) - bad
    assert command("verify", url).exit_code == 0


def test_repair_writes_nothing_over_what_came_meanwhile(
    remote: S3, mixed: Path, directory: Path
) -> None:
    url = damage(remote, mixed, directory)
    bits = url / "complete/c.0"

    def commit_meanwhile(_done: int, _total: int) -> None:
        with suppress(StopIteration):
            remote.write(str(bits), next(theirs))

    theirs = iter([b"theirs"])
    with pytest.raises(RefusedError, match=r"complete/c\.0 is not what it was"):
        verify_store(url, VerifyOptions(repair=True), commit_meanwhile)

    assert bits.read_bytes() == b"theirs"


# --- export and import --------------------------------------------------------------------------


def test_what_is_exported_under_a_url_are_the_files_of_a_directory(
    remote: S3, mixed: Path, directory: Path
) -> None:
    url = new_url(remote, "files")
    there = command("export", mixed, url, "--format", "speculators", "--json")
    here = command("export", mixed, directory / "files", "--format", "speculators", "--json")

    assert there.exit_code == here.exit_code == 0, there.output
    found = files_of(url)
    files = {path for path in (directory / "files").rglob("*") if path.is_file()}
    assert found.keys() == {str(path.relative_to(directory / "files")) for path in files}
    for path in files:
        name = str(path.relative_to(directory / "files"))
        if name != "hsstore-export.json":  # has a time in it
            assert found[name] == path.read_bytes(), name
    assert json.loads(found["hsstore-export.json"])["finished"]


def test_an_export_under_a_url_goes_on_where_it_was_cut_off(remote: S3, mixed: Path) -> None:
    url = new_url(remote, "files")
    name = "--format", "speculators"
    remote.fail(500, r"PUT .*hs_3\.safetensors", times=10_000)
    ended = command("export", mixed, url, *name)
    assert ended.exit_code == 75, ended.output
    remote.fail("", "", times=0)
    before = set(url.find())
    assert before
    assert not json.loads((url / "hsstore-export.json").read_bytes())["finished"]

    done = json.loads(command("export", mixed, url, *name, "--json").stdout)

    assert done["resumed"]
    assert done["kept"] == len([one for one in before if one.endswith(".safetensors")])
    assert done["written"] == done["samples"] - done["kept"]
    other = command("export", mixed, url, "--format", "specforge")
    assert other.exit_code == 3
    assert "was made by another export" in other.stderr
    strange = command("export", mixed, url.parent, *name)
    assert strange.exit_code == 3
    assert "is not empty" in strange.stderr


def test_of_two_exports_that_begin_in_one_place_at_once_one_is_refused(mixed: Path) -> None:
    """Their rows may be other samples, where the store has grown meanwhile."""
    store, place = hsstore.open(mixed), place_of(RemotePath(f"memory://states/{next(NAMES)}"))
    request = ExportRequest(trainer="eagle", store=store.spec.store, plan_hash="")
    one, other = (new_record(store, request, "post-norm", np.arange(samples)) for samples in (1, 2))
    place.write_record(one)

    with pytest.raises(ConflictError, match=r"hsstore-export\.json is not what it was"):
        place.write_record(other)

    assert read_record(place.root) == one
    finished = one.model_copy(update={"finished": True})
    place.write_record(finished)
    assert read_record(place.root) == finished


def test_files_under_a_url_are_imported_into_a_store_under_a_url(
    remote: S3, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come in several pieces."""
    monkeypatch.setattr("hsstore.importing.fetched.PIECE_BYTES", 1000)
    files, url = new_url(remote, "files"), locate(remote.upload(mixed))
    assert command("export", mixed, files, "--format", "modelopt").exit_code == 0
    store = hsstore.open(url)
    lost = sorted(complete_samples(store))[:5]
    digests = store.completion().digest
    store.withdraw(np.array(lost))

    done = command("import", files, url, "--format", "modelopt", "--json")

    report: dict[str, Any] = json.loads(done.stdout)
    assert sorted(one["sample"] for one in report["taken"]) == lost
    np.testing.assert_array_equal(hsstore.open(url).completion().digest, digests)
    assert verify_store(url, VerifyOptions()).ok
