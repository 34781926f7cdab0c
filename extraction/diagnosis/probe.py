"""What is looked at in a child: the store and its disk, the server's health and log, the GPUs.

Every function here may hang. What they return goes through JSON.
"""

from __future__ import annotations

import errno
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from extraction.diagnosis.copies import read_copies, runs_directory
from extraction.diagnosis.objects import look_at_objects
from extraction.engines.sglang.log import mask
from hsstore.claims import Claim, is_dead_here, owners_of
from hsstore.errors import HsstoreError, UnreachableError
from hsstore.store import Store

if TYPE_CHECKING:
    from extraction.diagnosis.child import Tell
    from hsstore.location import Location

LOG_LINES: Final = 5
_LOG_BYTES: Final = 64 << 10
_LINE_CHARACTERS: Final = 300
_PROBE_BYTES: Final = 4096
_NOT_OURS: Final = {errno.EACCES, errno.EPERM}
_NO_UNNAMED_FILES: Final = {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}


def look_at_output(store: Location, tell: Tell) -> dict[str, Any]:
    """Look at the file system, or the object store; at the store's completion and its claims."""
    if not isinstance(store, Path):
        return look_at_objects(store, _look_at_store, tell)
    found: dict[str, Any] = {}
    tell(f"stat of {store}")
    found["exists"] = store.exists()
    found["real"] = os.path.realpath(store)
    place = _existing(store)
    tell(f"statvfs of {place}")
    found |= _space(place)
    tell(f"reading {runs_directory(store)}")
    found["copies"] = read_copies(store)
    if found["exists"]:
        tell(f"reading {store}/zarr.json")
        found["is_store"] = (store / "zarr.json").exists()
        found |= _look_at_store(store, tell)
        found["newest_write_age_seconds"] = _newest_write(store)
    return found


def try_to_write(store: str, tell: Tell) -> dict[str, Any]:
    """Create a file without a name beside the store, write to it, and let it go.

    It leaves nothing behind, however it ends. Not every file system can do that.
    """
    place = runs_directory(Path(store))
    if not place.is_dir():
        place = _existing(Path(store).parent)
    tell(f"writing to a file without a name in {place}")
    try:
        descriptor = os.open(place, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _NOT_OURS:
            return {"untried": f"we may not write in {place}"}
        if error.errno in _NO_UNNAMED_FILES:
            return {"untried": f"{place} has no files without a name"}
        return {"error": f"{place}: {error.strerror}"}
    try:
        os.write(descriptor, bytes(_PROBE_BYTES))
        os.fsync(descriptor)
    except OSError as error:
        return {"error": f"{place}: {error.strerror}"}
    finally:
        os.close(descriptor)
    return {}


def ask_for_health(url: str, timeout_seconds: float, tell: Tell) -> dict[str, str]:
    """Ask a server for `/health`; no proxy, and a certificate is not what this is about."""
    tell(f"GET {url}/health")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(f"{url.rstrip('/')}/health", timeout=timeout_seconds) as response:
            return {"health": "ok", "detail": f"status {response.status}"}
    except urllib.error.HTTPError as error:
        alive = error.code < 500  # such as 401: it answers
        return {"health": "ok" if alive else f"status {error.code}", "detail": str(error.reason)}
    except http.client.HTTPException as error:
        return {"health": "no HTTP", "detail": f"{type(error).__name__}: {error}"}
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return _no_health(reason if isinstance(reason, BaseException) else error)


def _no_health(error: BaseException) -> dict[str, str]:
    if isinstance(error, TimeoutError):
        return {"health": "no answer", "detail": str(error)}
    if isinstance(error, ConnectionResetError):
        return {"health": "reset", "detail": str(error)}
    return {"health": "refused", "detail": str(error)}


def read_log_tail(path: str, tell: Tell) -> list[str]:
    """Read the last lines of a server's log, keys hidden: they end in reports that others read."""
    tell(f"reading {path}")
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [mask(line)[:_LINE_CHARACTERS] for line in lines if line.strip()][-LOG_LINES:]


def look_at_gpus(tell: Tell) -> list[dict[str, Any]]:
    """Ask NVML for the GPUs of this machine.

    Raises
    ------
    ImportError
        The extra `gpu` is not installed.
    Exception
        NVML's own: no driver, no GPU.
    """
    tell("asking NVML")
    import pynvml  # noqa: PLC0415  # an extra

    pynvml.nvmlInit()
    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu: dict[str, Any] = dict.fromkeys(("busy_percent", "memory_used_bytes", "memory_bytes"))
        gpu["name"] = f"{index} {pynvml.nvmlDeviceGetName(device)}"
        with suppress(pynvml.NVMLError):  # not told of every kind of GPU, nor to everybody
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            gpu |= {"memory_used_bytes": int(memory.used), "memory_bytes": int(memory.total)}
        with suppress(pynvml.NVMLError):
            gpu["busy_percent"] = int(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
        gpus.append(gpu)
    return gpus


def free_bytes(directory: str, tell: Tell) -> int:
    """Return how much room is on the disk of a directory."""
    tell(f"statvfs of {directory}")
    return int(_space(_existing(Path(directory)))["free_bytes"])


def _existing(path: Path) -> Path:
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _space(place: Path) -> dict[str, Any]:
    status = os.statvfs(place)
    return {
        "free_bytes": status.f_bavail * status.f_frsize,
        "total_bytes": status.f_blocks * status.f_frsize,
        # A file system that does not count its inodes says 0 of 0.
        "free_inodes": status.f_favail if status.f_files else None,
        "read_only": bool(status.f_flag & os.ST_RDONLY),
    }


def _look_at_store(location: Location, tell: Tell) -> dict[str, Any]:
    tell(f"reading {location}/zarr.json")
    try:
        store = Store.open(location)
        tell(f"reading {location}/complete")
        completion = store.completion()
        tell(f"reading {location}/runs")
        runs = store.runs()
    except UnreachableError:
        raise
    except HsstoreError as error:
        return {"unreadable_plan": str(error)}
    found: dict[str, Any] = {
        "capture_hash": store.spec.model.capture_hash,
        "samples": len(store),
        "complete": int(completion.complete.sum()),
        "failed": int((completion.failed > 0).sum()),
    }
    if runs:
        last = runs[-1]
        found["last_result"] = last.result or ""
        found["host"] = last.host
        if last.servers:
            one = next((one for one in last.servers if one.tokens), last.servers[0])
            found["spool"], found["server"] = one.spool, one.url
        else:  # of an earlier version
            found["spool"] = str(last.options.get("spool") or "")
            found["server"] = str(last.options.get("server") or "")
    tell(f"reading {location}.runs/claims")
    found["claims"] = _claims(store)
    return found


def _claims(store: Store) -> list[dict[str, Any]]:
    """Return the owner of each claimed span once, and whether it is known to live."""
    me = Claim.of_this_process("doctor")
    return [
        {
            "run": claim.run,
            "pid": claim.pid,
            "host": claim.host,
            "since": claim.since,
            "local": claim.shares_locks_with(me),
            "lives": claim.shares_locks_with(me) and not is_dead_here(store, claim, me),
        }
        for claim, _ in owners_of(store).values()
    ]


def _newest_write(store: Path) -> float | None:
    """Return the seconds since anything was written into the store's states or bits."""
    newest = 0.0
    for name in ("hidden_states", "complete"):
        try:
            with os.scandir(store / name) as entries:
                newest = max(newest, *(entry.stat().st_mtime for entry in entries), 0.0)
        except OSError:
            continue
    return max(0.0, time.time() - newest) if newest else None
