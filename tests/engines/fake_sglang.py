"""Stands in for a Python with SGLang, for faults that a real one shows too rarely.

Run as `python fake_sglang.py BEHAVIOUR -m MODULE ARGUMENTS...`. It captures nothing.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from extraction.spool import ServerInfo, SpoolServer

ANSWERS = {
    "no-sglang": {"hsstore": "0.1.0", "sglang": None, "supported": False, "problem": "none"},
    "too-old": {"hsstore": "0.1.0", "sglang": "0.5.9", "supported": False, "problem": "too old"},
}
GOOD_ANSWER = {"hsstore": "0.1.0", "sglang": "0.5.23", "supported": True, "problem": None}


def main(behaviour: str, module: str, arguments: list[str]) -> None:
    """Answer for the plugin, or behave as a server."""
    if module == "hsstore_sglang":
        if behaviour == "no-plugin":
            sys.exit("/usr/bin/python3: No module named hsstore_sglang")
        _say(json.dumps(ANSWERS.get(behaviour, GOOD_ANSWER)))
        return
    _say(f"started with {arguments}")
    if behaviour == "dies":
        _say("\n".join(f"line {number}" for number in range(100)))
        _say(f"while it ran with {arguments}")
        sys.exit("CUDA out of memory")
    if behaviour == "stubborn":
        _be_stubborn()
    _serve(behaviour, int(arguments[arguments.index("--port") + 1]))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _be_stubborn() -> None:
    """Ignore SIGTERM, with a child that does so too and inherits it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with subprocess.Popen(["sleep", "1000"]):
        _say("stubborn")
        time.sleep(1000)


def _serve(behaviour: str, port: int) -> None:
    mapped = _share_memory()
    if behaviour == "good":  # as one of another container with our process id has
        Path(f"/dev/shm/sgl_shm_mq_{os.getpid()}_theirs").write_bytes(b"in use")
    if behaviour == "slow":  # it answers, and reads the weights' headers
        threading.Thread(target=_announce_late).start()
    elif behaviour == "mute":
        _say("hsstore: the model has no set_dflash_layers_to_capture")
    else:
        SpoolServer(Path(os.environ["HSSTORE_SPOOL"])).announce(_info())
    if behaviour == "lingers" and os.fork() == 0:
        _linger(os.getppid())
    ThreadingHTTPServer(("127.0.0.1", port), _Handler).serve_forever()
    mapped.close()


def _share_memory() -> mmap.mmap:
    """Map what a killed SGLang leaves behind."""
    ours = Path(f"/dev/shm/sgl_shm_mq_{os.getpid()}_fake")
    ours.write_bytes(b"left behind")
    with ours.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def _announce_late() -> None:
    spool = SpoolServer(Path(os.environ["HSSTORE_SPOOL"]))
    time.sleep(5)
    spool.announce(_info())


def _linger(server: int) -> None:
    """Hold the lock a little longer, as the kernel does while it clears a large process."""
    os.setsid()
    while os.getppid() == server:
        time.sleep(0.05)
    time.sleep(3)
    os._exit(0)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/die":
            os._exit(3)
        self.send_response(200)
        self.end_headers()


def _info() -> ServerInfo:
    return ServerInfo(
        instance="fake",
        capture_hash="c" * 64,
        model="none",
        num_layers=6,
        hidden=8,
        layers=(1, 2),
        final="post-norm",
        dtype="bfloat16",
        norm=None,
        engine="sglang",
        engine_version="0.5.23",
        plugin_version="0.1.0",
        pid=os.getpid(),
        host="here",
        url="",
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3], sys.argv[4:])
