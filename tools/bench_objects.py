"""Benchmark: what a request to an object store costs, in alternating rounds, beside plain aiobotocore and a disk.

    python tools/bench_objects.py
    python tools/bench_objects.py --quick      # a smoke run, into build/bench-quick.json

moto's S3 server runs on loopback, in a process of its own. It answers in a few milliseconds, where a real one takes 10 to
200: so what counts is the ratio, and how much longer hsstore takes than the same requests without it.

* request: 4 KiB of an object, read again and again;
* small, large: a sample, 64 rows of 576 or 512 rows of 7,168 channels: its completion bit, then its bytes, decoded and
  checked. aiobotocore gets the same two ranges and does nothing with them; local is the same store on a disk, warm;
* put: a new object of 32 KiB, checksummed, on the condition that there is none;
* upload: 64 MiB in parts of 16 MiB, checksummed; aiobotocore sends them side by side, too.

Speeds are requests, samples, puts and uploads a second; ratios are taken within a round, and are the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiobotocore.session import AioSession  # type: ignore[import-untyped]
from s3fs.core import S3FileSystem

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.location import RemotePath
from hsstore.objects import Request, read
from hsstore.objects.puts import ABSENT
from hsstore.objects.write import PART_BYTES, Upload, put
from hsstore.shard.remote import RemoteShard
from hsstore.store import Store
from tools.bench_json import RESULTS, ROOT, record
from tools.reading.samples import write_samples
from tools.rounds import Unit, summary, take_turns, warm

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    Contestants = dict[str, Callable[[], None]]

BUCKET = "bench"
SIZES = {"small": (64, 576), "large": (512, 7168)}
"""Rows and channels of the samples."""
READ_BYTES = 4 << 10
PUT_BYTES = 32 << 10
PARTS = 4
A_SECOND = Unit("per_second", "a second", "8.1f")
SERVER = """
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
import logging
logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_server() -> Iterator[None]:
    """Run the server, and name it in the environment."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as process:
        line = process.stdout.readline() if process.stdout else b""
        os.environ |= ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(line)}"}
        try:
            yield
        finally:
            process.terminate()


class Plain:
    """aiobotocore itself, on an event loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._context = AioSession().create_client("s3")
        self._client: Any = self.run(self._context.__aenter__())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401  # as asyncio
        """Run a coroutine."""
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Close the connections."""
        self.run(self._context.__aexit__(None, None, None))
        self._loop.close()

    async def get(self, request: Request) -> None:
        """Get a range."""
        where = {"Bucket": BUCKET, "Key": request.url.removeprefix(f"s3://{BUCKET}/")}
        if request.stop is not None:
            where["Range"] = f"bytes={request.start}-{request.stop - 1}"
        answer = await self._client.get_object(**where)
        async with answer["Body"] as body:
            await body.read()

    async def get_all(self, requests: list[Request]) -> None:
        """Get one range after the other."""
        for request in requests:
            await self.get(request)

    async def put(self, key: str, data: bytes) -> None:
        """Put an object."""
        await self._client.put_object(Bucket=BUCKET, Key=key, Body=data, IfNoneMatch="*")

    async def upload(self, key: str, data: bytes) -> None:
        """Send parts side by side, and complete them."""
        where = {"Bucket": BUCKET, "Key": key}
        begun = await self._client.create_multipart_upload(**where, ChecksumAlgorithm="CRC32")
        where["UploadId"] = begun["UploadId"]

        async def send(number: int) -> dict[str, Any]:
            sent = await self._client.upload_part(**where, PartNumber=number, Body=data)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        parts = await asyncio.gather(*map(send, range(1, PARTS + 1)))
        await self._client.complete_multipart_upload(**where, MultipartUpload={"Parts": [*parts]})


def requests_of(store: Store, sample: int) -> list[Request]:
    """Return what a sample is read with: its span of the bitmap, and its bytes in each of its shards."""
    root = store.location
    requests = [Request(str(root / "complete" / f"c.{sample // store.spec.layout.span_samples}"))]
    shards: dict[int, list[int]] = {}
    for place in store.index.chunks_of(sample, store.index.length[sample]):
        shards.setdefault(place.shard, []).append(place.chunk)
    for shard, chunks in shards.items():
        url = root / "hidden_states" / f"c.{shard}.0.0"
        if not isinstance(url, RemotePath):
            raise TypeError(url)
        opened = RemoteShard(url, store.spec.geometry.shard_chunks)
        requests += [opened.request(read) for read in opened.plan(chunks, 1 << 30)]
    return requests


def readers(plain: Plain, directory: Path, samples: int, kind: str) -> Contestants:
    """Return what reads every sample of a store once: in the object store, without hsstore, on disk."""
    path = write_samples(directory / kind, samples, *SIZES[kind]).store
    url = f"s3://{BUCKET}/{kind}.zarr"
    files: Any = S3FileSystem(use_listings_cache=False)
    files.put(str(path), url, recursive=True)
    remote, local = Store.open(url), Store.open(path)
    requests = [requests_of(remote, sample) for sample in range(samples)]

    def read_all(store: Store) -> None:
        for sample in range(samples):
            store.states(sample)

    def get_all() -> None:
        for one in requests:
            plain.run(plain.get_all(one))

    return {
        "hsstore": partial(read_all, remote),
        "aiobotocore": get_all,
        "local": partial(read_all, local),
    }


def request_readers(plain: Plain, times: int) -> Contestants:
    """Return what reads a small range so many times."""
    request = Request(f"s3://{BUCKET}/object", 0, READ_BYTES)
    put(request.url, os.urandom(PUT_BYTES), replaces=ABSENT)

    def get_all() -> None:
        plain.run(plain.get_all([request] * times))

    def read_all() -> None:
        for _ in range(times):
            read(request)

    return {"hsstore": read_all, "aiobotocore": get_all}


def writers(plain: Plain, times: int) -> Contestants:
    """Return what puts so many new objects."""
    data, names = os.urandom(PUT_BYTES), count()

    def put_all() -> None:
        for _ in range(times):
            put(f"s3://{BUCKET}/put/{next(names)}", data, replaces=ABSENT)

    def put_plain() -> None:
        for _ in range(times):
            plain.run(plain.put(f"put/{next(names)}", data))

    return {"hsstore": put_all, "aiobotocore": put_plain}


def uploaders(plain: Plain) -> Contestants:
    """Return what uploads a new object in parts."""
    data, names = os.urandom(PART_BYTES), count()

    def send() -> None:
        upload = Upload(f"s3://{BUCKET}/upload/{next(names)}", replaces=ABSENT)
        for _ in range(PARTS):
            upload.part(lambda: data)
        upload.finish().complete()

    return {
        "hsstore": send,
        "aiobotocore": lambda: plain.run(plain.upload(f"upload/{next(names)}", data)),
    }


def measure(kind: str, contestants: Contestants, times: int, rounds: int) -> dict[str, Any]:
    """Let everyone do the same in every round; return what goes into the JSON."""

    def speed(name: str, _: int) -> float:
        started = time.perf_counter()
        contestants[name]()
        return times / (time.perf_counter() - started)

    found = summary(kind, take_turns(list(contestants), rounds, speed, warm), A_SECOND)
    speeds = found[f"{kind}_{A_SECOND.key}"]
    more = 1e3 / speeds["hsstore"] - 1e3 / speeds["aiobotocore"]
    print(f"  {more:+.2f} ms with hsstore")
    return found | {f"{kind}_more_ms": more}


def main() -> None:
    """Run the benchmark, print a table, write build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--times", type=int, default=100, help="requests, and puts, of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--target", type=Path, default=ROOT / "build/bench", help="on the disk")
    parser.add_argument("--quick", action="store_true", help="small, into build/bench-quick.json")
    given = parser.parse_args()
    if given.quick:
        given.samples, given.times, given.rounds = 3, 10, 1
    directory = given.target / uuid.uuid4().hex
    found: dict[str, Any] = {"samples": given.samples, "times": given.times}
    with s3_server():
        bucket: Any = S3FileSystem()
        bucket.mkdir(f"s3://{BUCKET}")
        plain = Plain()
        try:
            found |= measure(
                "request", request_readers(plain, given.times), given.times, given.rounds
            )
            for kind in SIZES:
                contestants = readers(plain, directory, given.samples, kind)
                found |= measure(kind, contestants, given.samples, given.rounds)
            found |= measure("put", writers(plain, given.times), given.times, given.rounds)
            found |= measure("upload", uploaders(plain), 1, given.rounds)
        finally:
            plain.close()
            shutil.rmtree(directory, ignore_errors=True)
    record("objects", found, RESULTS.with_name("bench-quick.json") if given.quick else RESULTS)


if __name__ == "__main__":
    main()
