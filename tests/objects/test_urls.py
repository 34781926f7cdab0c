"""URLs: what is one, what is refused by name, and a store in memory, for which no server is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import fsspec
import numpy as np
import pytest

import hsstore
import hsstore.cli
from hsstore.cli.app import app
from hsstore.errors import CorruptStoreError, InputError
from hsstore.importing.fetched import FetchedFiles
from hsstore.location import PROTOCOLS, RemotePath, locate, runs_beside
from hsstore.objects.files import put_file
from hsstore.objects.puts import ABSENT, ConflictError
from hsstore.objects.retry import describe
from hsstore.objects.write import put, version_of
from hsstore.shard import shard_path
from hsstore.shard.index import index_bytes
from hsstore.shard.remote import RemoteShard
from hsstore.store import Store
from hsstore.testing.invariants import check_set_bits_read_back, complete_samples
from hsstore.testing.stores import commit_block, make_store, start_block
from hsstore.verify import VerifyOptions, verify_store
from tests.command import command
from tests.objects.s3 import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_urls_and_paths_are_told_apart() -> None:
    assert locate("states.zarr") == Path("states.zarr")
    assert locate("file:///data/states.zarr") == Path("/data/states.zarr")
    assert locate("S3://bucket/a/states.zarr/") == RemotePath("s3://bucket/a/states.zarr")
    assert locate("memory:///states.zarr") == RemotePath("memory://states.zarr")
    assert locate(Path("a")) == Path("a")
    url = RemotePath("memory://bucket/states.zarr")
    assert (url.name, str(url.parent), str(url / "x")) == (
        "states.zarr",
        "memory://bucket",
        "memory://bucket/states.zarr/x",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file://host/a", "three slashes"),
        ("hdfs://host/a", "hdfs:// is not supported so far"),
        ("s3://", "a bucket's name"),
        ("s3://bucket/../a", "a bucket's name"),
        ("s3://bucket//a", "a bucket's name"),
        ("s3:/bucket/a", "two slashes"),
        ("file:/data/a", "two slashes"),
    ],
)
def test_other_urls_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        locate(text)


@pytest.mark.parametrize(
    "text",
    ["s3://key:hidden@b/a", "s3://key:hid/den@b/a", "s3://b/a?sig=hidden", "gs://b/a#hidden"],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InputError, match="credentials") as caught:
        locate(text)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("protocol", ["s3", "gs"])
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setitem(PROTOCOLS, protocol, ("none.such",))
    with pytest.raises(InputError, match=rf"pip install 'hsstore\[{protocol}\]'"):
        locate(f"{protocol}://bucket/states.zarr")


@pytest.mark.parametrize("bucket", ["s3://bucket", "gs://bucket"])
def test_beside_a_bucket_is_nothing_of_ours(bucket: str) -> None:
    with pytest.raises(InputError, match=f"such as {bucket}/states.zarr"):
        runs_beside(RemotePath(bucket))
    assert runs_beside(RemotePath(f"{bucket}/a")) == RemotePath(f"{bucket}/a.runs")
    assert runs_beside(RemotePath("memory://a")) == RemotePath("memory://a.runs")


URL = "s3://b/a"
TAKE_URLS: dict[str, set[str]] = {
    "consolidate": set(),
    "doctor": {"store"},
    "export": {"store", "directory", "ids"},
    "extract": {"store", "data"},
    "import_": {"source", "store", "data"},
    "info": {"store"},
    "plan": {"data", "store"},
    "regenerate": {"prompts"},
    "relay": set(),
    "serve": set(),
    "status": {"store"},
    "verify": {"store"},
}
"""Of each command what names a store or data; `consolidate` parses its paths by itself."""


def test_each_place_that_a_command_is_given_takes_urls_or_refuses_them_by_its_name() -> None:
    found: dict[str, set[str]] = {}
    for one in app.registered_commands:
        assert one.callback is not None
        taken = found.setdefault(one.callback.__name__, set())
        for name, hint in get_type_hints(one.callback, include_extras=True).items():
            parse = _parser(hint)
            if parse is None:
                assert "Path" not in str(hint), f"{one.callback.__name__} {name} would take any URL"
            elif isinstance(_parsed(parse), RemotePath):
                taken.add(name)
    assert found == TAKE_URLS


def _parser(hint: Any) -> Callable[[str], object] | None:
    found = [getattr(one, "parser", None) for one in getattr(hint, "__metadata__", ())]
    parser: Callable[[str], object] | None = next(filter(None, found), None)
    return parser


def _parsed(parse: Callable[[str], object]) -> object:
    try:
        return parse(URL)
    except InputError as error:
        assert f" local paths only so far: {URL}" in str(error)  # noqa: PT017  # both are right
        return None


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "a", "--html", URL),
        ("verify", "a", "--semantic", URL),
        ("extract", "a", "--stage", URL),
        ("extract", "a", "--model", URL),
        ("extract", "a", "--server", f"http://h:1={URL}"),
        ("extract", "a", "--server", "http://h:1", "--spool", URL),
        ("serve", URL),
        ("serve", "a", "--log", URL),
        ("relay", URL, "--host", "0.0.0.0"),  # where it is taken, it ends for want of a token
        ("regenerate", "a", URL, "--server", "http://h:1", "--model", "m"),
    ],
)
def test_what_takes_no_url_ends_with_2_and_says_so(arguments: tuple[str, ...]) -> None:
    refused = command(*arguments)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("hsstore: ")
    assert f"local paths only so far: {URL}" in refused.stderr


def test_ids_are_read_from_a_url(mixed: Path, in_memory: str, tmp_path: Path) -> None:
    ids = f"{in_memory}/wanted.txt"
    store = hsstore.open(mixed)
    wanted = [store.sample_id(sample) for sample in sorted(complete_samples(store))[:2]]
    fsspec.filesystem("memory").pipe_file(ids, "\n".join(wanted).encode())

    merged = command("consolidate", mixed, tmp_path / "new.zarr", "--where", f"ids={ids}")
    nothing = command("consolidate", mixed, tmp_path / "x", "--where", f"ids={ids}.none")
    exported = command(
        "export", mixed, tmp_path / "files", "--format", "speculators", "--ids", ids, "--json"
    )

    assert merged.exit_code == 0, merged.output
    assert len(hsstore.open(tmp_path / "new.zarr")) == len(wanted)
    assert (nothing.exit_code, f"{ids}.none: cannot be read" in nothing.stderr) == (2, True)
    assert json.loads(exported.stdout)["samples"] == len(wanted)


def test_a_store_in_memory_reads_as_on_disk(mixed: Path, in_memory: str) -> None:
    local, remote = hsstore.open(mixed), hsstore.open(in_memory)
    for sample in np.flatnonzero(local.completion().complete).tolist():
        expected = local.states(sample).view("u2")
        np.testing.assert_array_equal(remote.states(sample).view("u2"), expected)
        assert remote.sample_id(sample) == local.sample_id(sample)
    assert remote.runs() == local.runs()
    assert verify_store(in_memory, VerifyOptions()).ok


def test_a_damaged_or_replaced_shard_is_never_returned(mixed: Path, in_memory: str) -> None:
    files = fsspec.filesystem("memory")
    name = f"{in_memory}/hidden_states/c.0.0.0"
    whole = (mixed / "hidden_states" / "c.0.0.0").read_bytes()
    store = hsstore.open(in_memory)
    expected = store.states(0).view("u2").copy()

    files.pipe_file(name, bytes([whole[0] ^ 1, *whole[1:]]))
    with pytest.raises(CorruptStoreError, match=r"sample 0: shard c\.0\.0\.0 chunk 0"):
        store.states(0)
    files.pipe_file(name, whole[:10])
    with pytest.raises(CorruptStoreError, match="shorter than its index"):
        store.states(0)
    files.pipe_file(name, whole)
    np.testing.assert_array_equal(store.states(0).view("u2"), expected)
    files.rm_file(name)  # its index is known by now
    with pytest.raises(CorruptStoreError, match="shard is missing"):
        store.states(0)
    files.pipe_file(name, whole)
    np.testing.assert_array_equal(store.states(0).view("u2"), expected)


def test_an_open_shard_notices_that_it_was_replaced(mixed: Path, in_memory: str) -> None:
    files = fsspec.filesystem("memory")
    url = RemotePath(f"{in_memory}/hidden_states/c.0.0.0")
    chunks = hsstore.open(mixed).spec.geometry.shard_chunks
    shard = RemoteShard(url, chunks)
    whole = files.cat_file(str(url))
    assert len(whole) > index_bytes(chunks)

    files.pipe_file(str(url), whole)
    with pytest.raises(OSError, match="was replaced"):
        shard.read(0)


def test_loaders_read_the_same_batches_from_a_url(mixed: Path, in_memory: str) -> None:
    loaders = pytest.importorskip("hsstore.loaders")
    here, there = (
        list(loaders.Eagle3Stream(place, batch_size=3, seed=5)) for place in (mixed, in_memory)
    )

    assert len(here) == len(there) > 1
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert tensor.equal(other[name])
    dataset = loaders.Eagle3Dataset(in_memory)
    assert dataset[0]["final_state"].equal(loaders.Eagle3Dataset(mixed)[0]["final_state"])
    with pytest.raises(InputError, match="follow=True reads local paths only so far"):
        loaders.Eagle3Stream(in_memory, batch_size=3, follow=True)


def test_a_view_on_dask_reads_from_a_url(mixed: Path, in_memory: str) -> None:
    here, there = (
        hsstore.open(place).to_dask_array("input_ids").compute() for place in (mixed, in_memory)
    )
    np.testing.assert_array_equal(here, there)


def test_a_large_file_is_put_in_parts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsstore.objects.files.PART_BYTES", 10)
    file, url = directory / "file", f"memory://states/{next(NAMES)}/file"
    file.write_bytes(bytes(range(25)))

    put_file(file, url, replaces=ABSENT)

    assert RemotePath(url).read_bytes() == file.read_bytes()
    with pytest.raises(ConflictError):
        put_file(file, url, replaces=ABSENT)


def test_a_shard_that_is_replaced_while_it_is_copied_is_refused() -> None:
    url = RemotePath(f"memory://states/{next(NAMES)}/s.zarr")
    store = make_store(url, [3, 9])
    commit_block(store, 0, [0, 1])
    shard = shard_path(url, 0)

    def lengths() -> Iterator[int]:
        yield 3
        put(str(shard), b"another", replaces=version_of(str(shard)))
        yield 9

    with ThreadPoolExecutor(1) as encoders:
        writer = start_block(store, 0, [], encoders, "run")
        with pytest.raises(ConflictError, match=f"{shard} is not what it was"):
            writer.copy([0, 1], store.payload, lengths())
        writer.discard()


def test_what_is_copied_is_read_from_the_shard_that_is_there_now() -> None:
    """And not by the index of the one that was read before."""
    url = RemotePath(f"memory://states/{next(NAMES)}/s.zarr")
    store = make_store(url, [3, 9])
    commit_block(store, 0, [1])
    _ = store.states(1)
    commit_block(Store.open(url), 0, [0])  # as another process does
    store.withdraw(np.array([0]))

    commit_block(store, 0, [0])

    assert complete_samples(store) == {0, 1}
    check_set_bits_read_back(Store.open(url))


def test_what_goes_away_while_a_store_is_created_is_not_called_an_error_of_the_disk() -> None:
    files = fsspec.filesystem("memory")
    url = RemotePath(f"memory://states/{next(NAMES)}/s.zarr")
    make_store(url, [3, 9])
    files.rm(str(url / "zarr.json"))  # as a creation leaves it that is killed before the end
    lengths = url / "length/c.0"

    def compare(path: RemotePath) -> bytes:
        if path == lengths:
            files.rm(str(lengths))
        return path.get().data

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RemotePath, "read_bytes", compare)
        with pytest.raises(ConflictError, match=f"{lengths} is not what it was"):
            make_store(url, [3, 9])

    assert len(make_store(url, [3, 9])) == 2


def test_files_are_fetched_into_a_room_that_has_an_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsstore.importing.fetched.PIECE_BYTES", 4)
    root = RemotePath(f"memory://states/{next(NAMES)}")
    contents = {f"in/{number}.pt": bytes([number]) * 10 for number in range(3)}
    for name, data in contents.items():
        put(str(root / name), data, replaces=ABSENT)
    fetched = FetchedFiles(root, directory, kept_bytes=25)

    for name in [*contents, *contents]:
        assert fetched.path(name).read_bytes() == contents[name]
        assert len(list(directory.iterdir())) <= 2
    assert fetched.path("in/2.pt") == fetched.path("in/2.pt")


def test_an_error_is_told_without_what_an_endpoint_may_hold() -> None:
    error = ConnectionError('cannot connect to "http://me:hid/den@host:9000/bucket"\n  at all')
    assert describe(error) == (
        'ConnectionError: cannot connect to "http://***@host:9000/bucket" at all'
    )


def test_a_local_store_needs_no_client_of_an_object_store() -> None:
    program = (
        "import sys, hsstore.store, hsstore.verify, hsstore.cli; "
        "print([m for m in ('s3fs', 'botocore', 'google.auth', 'hsstore.objects') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
