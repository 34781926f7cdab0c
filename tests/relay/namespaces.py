"""Two network namespaces with a line between them: what stands for two machines."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.extraction.fake_server import serve_fake
from tests.faults.fake import Fake
from tests.relay.given import relay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLONE_NEWNET = 0x4000_0000
"""From <linux/sched.h>."""
THERE, HERE = "10.203.7.1", "10.203.7.2"


class Cable:
    """The line; its ends are in the namespaces `there` and `here`."""

    def __init__(self) -> None:
        self.there, self.here = (f"hs-{os.getpid()}-{end}" for end in ("there", "here"))

    def cut(self) -> None:
        """Let nothing through: whoever sends hears nothing."""
        self._at(self.there, "link", "set", "line", "down")

    def mend(self) -> None:
        """Let everything through."""
        self._at(self.there, "link", "set", "line", "up")

    def slow_down(self, rate: str) -> None:
        """Let only so much through from there, such as 2mbit."""
        shaped = ["tc", "-n", self.there, "qdisc", "replace", "dev", "line", "root", "tbf"]
        _run(*shaped, "rate", rate, "burst", "16k", "latency", "300ms")

    @staticmethod
    def _at(namespace: str, *arguments: str) -> None:
        _run("ip", "-n", namespace, *arguments)


@contextmanager
def connected() -> Iterator[Cable]:
    """Have two namespaces and a line; they are gone in the end."""
    cable = Cable()
    try:
        try:
            for namespace in (cable.there, cable.here):
                _run("ip", "netns", "add", namespace)
                cable._at(namespace, "link", "set", "lo", "up")
            ends = ["line", "netns", cable.there, "type", "veth"]
            _run("ip", "link", "add", *ends, "peer", "name", "line", "netns", cable.here)
            for namespace, address in ((cable.there, THERE), (cable.here, HERE)):
                cable._at(namespace, "address", "add", f"{address}/24", "dev", "line")
                cable._at(namespace, "link", "set", "line", "up")
            cable.slow_down("100mbit")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield cable
    finally:
        for namespace in (cable.there, cable.here):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


@contextmanager
def serving_there(cable: Cable, spool: Path, samples: int) -> Iterator[tuple[Fake, str]]:
    """Have a server and its relay in the other namespace, in a thread; gives the relay's URL too."""
    ready: list[tuple[Fake, str]] = []
    started, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with (
            serve_fake(spool, samples, host=THERE) as server,
            relay(spool, host=THERE) as url,
        ):
            ready.append((Fake(asyncio.get_running_loop(), server), url))
            started.set()
            await stop.wait()

    def main() -> None:
        try:
            _enter(cable.there)
            asyncio.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=main)
    thread.start()
    try:
        started.wait()
        yield ready[0]
    finally:
        if ready:
            ready[0][0]._loop.call_soon_threadsafe(stop.set)
        thread.join(30)


def _enter(namespace: str) -> None:
    """Move this thread, and no other, into a namespace."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.setns(descriptor, CLONE_NEWNET)
    os.close(descriptor)
    assert not failed, os.strerror(ctypes.get_errno())


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
