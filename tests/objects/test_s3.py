"""A store in S3: read as on disk, in few requests, through errors of the server, and never by guessing."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import time
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hsstore
from hsstore.activity import operations
from hsstore.codec import UNCOMPRESSED
from hsstore.create import LayoutOptions
from hsstore.errors import CorruptStoreError, InputError, NotExtractedError, UnreachableError
from hsstore.location import locate
from hsstore.testing.invariants import complete_samples
from hsstore.testing.stores import commit_block, make_store, payload
from tests.command import command
from tests.objects.s3 import S3, SECRET

if TYPE_CHECKING:
    from pathlib import Path


def test_every_sample_reads_the_same_as_on_disk(remote: S3, mixed: Path) -> None:
    local, there = hsstore.open(mixed), hsstore.open(remote.shared(mixed))

    assert there.spec == local.spec
    for name in ("complete", "failed", "digest"):
        one, other = (getattr(store.completion(), name) for store in (local, there))
        np.testing.assert_array_equal(other, one)
    for sample in complete_samples(local):
        one, other = local[sample], there[sample]
        assert (other.sample_id, other.index) == (one.sample_id, one.index)
        np.testing.assert_array_equal(other.input_ids, one.input_ids)
        np.testing.assert_array_equal(other.loss_mask, one.loss_mask)
        np.testing.assert_array_equal(other.hidden_states.view("u2"), one.hidden_states.view("u2"))
        part: dict[str, Any] = {"rows": slice(1, 3), "slots": [2, 0]}
        expected = local.states(sample, **part).view("u2")
        np.testing.assert_array_equal(there.states(sample, **part).view("u2"), expected)
    (pending,) = np.flatnonzero(local.completion().pending)[:1].tolist()
    with pytest.raises(NotExtractedError, match="pending"):
        there.states(pending)


def test_opening_and_reading_never_list(s3: S3, mixed: Path) -> None:
    store = hsstore.open(s3.shared(mixed))
    for sample in complete_samples(store):
        _ = store[sample]

    requests = s3.requests()

    assert requests
    assert {request["method"] for request in requests} == {"GET"}
    assert not [request for request in requests if "list-type" in request["query"]]
    assert not [request for request in requests if request["path"].endswith("/")]


def test_a_sample_is_two_requests_and_a_long_one_a_request_more_for_each_shard(
    s3: S3, mixed: Path
) -> None:
    store = hsstore.open(s3.shared(mixed))
    samples = complete_samples(store)
    shards = {
        sample: {place.shard for place in store.index.chunks_of(sample, store.index.length[sample])}
        for sample in samples
    }
    for sample in samples:  # indexes and the plan are known then
        _ = store[sample]
    assert max(map(len, shards.values())) > 1
    s3.requests()

    for sample in samples:
        _ = store[sample]
        paths = [request["path"] for request in s3.requests()]

        of_shards = [path for path in paths if "/hidden_states/" in path]
        assert len(of_shards) == len(shards[sample])
        assert len(paths) == 1 + len(of_shards), paths


def test_the_index_of_a_shard_is_one_request_and_is_kept(s3: S3, mixed: Path) -> None:
    store = hsstore.open(s3.shared(mixed))
    sample = min(complete_samples(store))
    _ = store.states(sample)
    of_shard = [one for one in s3.requests() if "/hidden_states/c." in one["path"]]
    assert [one["range"].startswith("bytes=-") for one in of_shard] == [True, False]

    _ = store.states(sample)
    (again,) = [one for one in s3.requests() if "/hidden_states/c." in one["path"]]
    assert not again["range"].startswith("bytes=-")


@pytest.mark.parametrize("what", [500, 503, "reset", "cut"])
def test_what_fails_is_tried_again(remote: S3, mixed: Path, what: int | str) -> None:
    local, url = hsstore.open(mixed), remote.shared(mixed)
    remote.fail(what, "GET /states", times=8)
    store = hsstore.open(url)
    remote.fail(what, "hidden_states/c", times=6)
    sample = min(complete_samples(local))

    states = store.states(sample)

    np.testing.assert_array_equal(states.view("u2"), local.states(sample).view("u2"))
    paths = [request["path"] for request in remote.requests()]
    assert len(paths) - len(set(paths)) >= 10


@pytest.mark.parametrize("what", [500, 503, "reset", 403, 404])
def test_an_error_is_never_taken_for_nothing_committed(
    remote: S3, mixed: Path, what: int | str
) -> None:
    url = remote.shared(mixed)
    store = hsstore.open(url)
    remote.fail(what, "complete/c", times=10_000)

    with pytest.raises((UnreachableError, InputError)) as caught:
        store.completion()
    with pytest.raises((UnreachableError, InputError)):
        store.states(0)

    assert f"cannot read {url}/complete/c." in str(caught.value)
    assert isinstance(caught.value, InputError) == (what in {403, 404})
    assert not isinstance(caught.value, CorruptStoreError)


def test_only_a_missing_object_is_nothing_committed(remote: S3, directory: Path) -> None:
    made = make_store(directory / "store.zarr", [3, 4, 5])

    store = hsstore.open(remote.upload(made.path))

    assert store.completion().pending.all()
    with pytest.raises(NotExtractedError, match="pending"):
        store.states(0)


def test_a_shard_that_was_replaced_is_read_anew(remote: S3, directory: Path) -> None:
    """Nothing is compressed: where one sample was, there are as many bytes of another one now."""
    options = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=6, codec="none")
    made = make_store(directory / "one.zarr", [4, 4], options=options)
    assert made.spec.codec == UNCOMPRESSED
    again = directory / "two.zarr"
    shutil.copytree(made.path, again)
    commit_block(made, 0, [0, 1])
    url = remote.upload(made.path)
    store = hsstore.open(url)
    before = store.states(0).view("u2").copy()
    commit_block(hsstore.open(again), 0, [1, 0])

    remote.put(again / "hidden_states" / "c.0.0.0", f"{url}/hidden_states/c.0.0.0")

    for sample in (0, 1):
        np.testing.assert_array_equal(store.states(sample).view("u2"), payload(made, sample))
    np.testing.assert_array_equal(before, payload(made, 0))


def test_what_is_missing_is_said(remote: S3) -> None:
    with pytest.raises(InputError, match="no hsstore store is there"):
        hsstore.open(remote.new("nothing"))
    with pytest.raises(InputError, match=r"NoSuchBucket.*see the bucket's name"):
        hsstore.open(f"{remote.protocol}://no-such-bucket/store.zarr")


def test_an_operation_names_its_url_while_it_hangs(s3: S3, mixed: Path) -> None:
    url = s3.shared(mixed)
    s3.fail("delay", "zarr.json", seconds=60)
    opening = Thread(target=hsstore.open, args=(url,))
    opening.start()
    deadline = time.monotonic() + 60
    seen: set[tuple[str, str]] = set()
    while not seen and time.monotonic() < deadline:
        seen = {(one.kind, one.path) for one in operations() if one.path.startswith(url)}
        time.sleep(0.01)
    s3.fail("", "", times=0)
    opening.join()

    assert seen == {("read", f"{url}/zarr.json")}


def test_a_process_that_was_forked_connects_by_itself(remote: S3, mixed: Path) -> None:
    store = hsstore.open(remote.shared(mixed))
    sample = min(complete_samples(store))
    expected = store.states(sample).view("u2").tobytes()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    child = context.Process(target=lambda: answers.put(store.states(sample).view("u2").tobytes()))
    child.start()
    child.join(120)

    assert child.exitcode == 0
    assert answers.get() == expected


def test_a_url_can_be_sent_to_other_processes() -> None:
    url = locate("s3://bucket/a/store.zarr/")
    assert pickle.loads(pickle.dumps(url)) == url
    assert str(url / "zarr.json") == "s3://bucket/a/store.zarr/zarr.json"


# --- commands ---------------------------------------------------------------------------------


def test_info_says_of_a_url_what_it_says_of_a_directory(s3: S3, mixed: Path) -> None:
    url = s3.shared(mixed)
    here, there = (json.loads(command("info", place, "--json").stdout) for place in (mixed, url))

    assert there.pop("path") == url
    del here["path"]
    assert there == here
    assert url in command("info", url).stdout


def test_verify_finds_what_is_bad_and_nothing_else(s3: S3, mixed: Path, directory: Path) -> None:
    url = s3.upload(mixed)
    healthy = command("verify", url, "--json")
    assert healthy.exit_code == 0, healthy.output
    here = json.loads(command("verify", mixed, "--json").stdout)
    assert json.loads(healthy.stdout) | {"path": ""} == here | {"path": ""}

    shard = directory / "shard"
    damaged = bytearray((mixed / "hidden_states" / "c.0.0.0").read_bytes())
    damaged[10] ^= 1
    shard.write_bytes(damaged)
    s3.put(shard, f"{url}/hidden_states/c.0.0.0")
    s3.put(shard, f"{url}/hidden_states/strange")
    s3.put(shard, f"{url}/hidden_states/c.0.0.0.run.partial")
    found = command("verify", url, "--json")

    assert found.exit_code == 1
    report = json.loads(found.stdout)
    assert {one["kind"] for one in report["bad"]} == {"chunk", "unexpected-file"}
    assert [note["kind"] for note in report["notes"]] == ["leftover"]


def test_verify_says_what_could_not_be_read_and_blames_no_sample(s3: S3, mixed: Path) -> None:
    url = s3.shared(mixed)
    s3.fail(500, r"GET .*hidden_states/c\.0\.0\.0", times=10_000)

    found = command("verify", url, "--json")

    assert found.exit_code == 1
    assert {one["kind"] for one in json.loads(found.stdout)["bad"]} == {"unreadable"}


def test_consolidate_takes_stores_under_urls(s3: S3, mixed: Path, directory: Path) -> None:
    from_url = command("consolidate", s3.shared(mixed), directory / "a.zarr", "--json")
    from_disk = command("consolidate", mixed, directory / "b.zarr", "--json", "--link", "never")

    assert [from_url.exit_code, from_disk.exit_code] == [0, 0], from_url.output
    a, b = (hsstore.open(directory / name) for name in ("a.zarr", "b.zarr"))
    assert len(a) == len(b)
    np.testing.assert_array_equal(a.completion().digest, b.completion().digest)


def test_export_writes_the_same_files_from_a_url(s3: S3, mixed: Path, directory: Path) -> None:
    url = s3.shared(mixed)
    for place, name in ((url, "a"), (mixed, "b")):
        done = command("export", place, directory / name, "--format", "specforge", "--json")
        assert done.exit_code == 0, done.output

    files = {
        path.relative_to(directory / "b")
        for path in (directory / "b").rglob("*")
        if path.suffix in {".ckpt", ".pt", ".safetensors"}
    }
    assert files
    for file in files:
        assert (directory / "a" / file).read_bytes() == (directory / "b" / file).read_bytes()


@pytest.mark.parametrize(
    ("name", "where"),
    [("info", "digest/c"), ("verify", "complete/c"), ("consolidate", "hidden_states/c")],
)
def test_a_store_that_does_not_answer_ends_a_command_with_75_and_is_not_called_damaged(
    s3: S3, mixed: Path, directory: Path, name: str, where: str
) -> None:
    url = s3.shared(mixed)
    s3.fail("reset", where, times=10_000)
    more = [directory / "new.zarr"] if name == "consolidate" else []

    ended = command(name, url, *more)

    assert ended.exit_code == 75, ended.output
    assert f"cannot read {url}/{where}." in ended.stderr
    assert "tried 9 times" in ended.stderr


def test_credentials_are_in_no_output(remote: S3, mixed: Path, directory: Path) -> None:
    url = remote.shared(mixed)
    outputs = [command("info", url, "--json").output, command("verify", url, "--json").output]
    remote.fail(403, "GET /states", times=10_000)
    outputs += [command("info", url).output, command("consolidate", url, directory / "x").output]
    outputs.append(command("info", f"{remote.protocol}://me:{SECRET}@states/store.zarr").output)
    outputs.append(command("info", f"{remote.protocol}://states/store.zarr?sig={SECRET}").output)

    assert "credentials and options do not belong into a URL" in outputs[-1]
    assert not [output for output in outputs if SECRET in output or "somebody" in output]
