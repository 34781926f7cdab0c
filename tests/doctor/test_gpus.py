"""What the doctor says of GPUs where NVML is not installed, has no driver, hangs, or tells little."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pynvml
import pytest

from extraction.diagnosis.child import Child
from extraction.diagnosis.describe import describe
from extraction.diagnosis.evidence import Evidence, ServerEvidence
from extraction.diagnosis.examine import gpu_evidence
from extraction.diagnosis.probe import look_at_gpus


def lines(deadline_seconds: float = 60.0) -> list[str]:
    """Look at the GPUs as the doctor does; return what it says of them."""
    answer = Child(look_at_gpus).wait(time.monotonic() + deadline_seconds)
    gpus, unreadable = gpu_evidence(answer)
    server = ServerEvidence("http://s", "ok", gpus=gpus, gpus_unreadable=unreadable)
    return [line for line in describe(Evidence(server=server)) if "GPU" in line]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert lines() == [
        "GPUs: not looked at: nvidia-ml-py is not installed (pip install 'hsstore[gpu]')"
    ]


def test_without_a_driver_it_says_so_in_one_line() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        pass
    else:
        pytest.skip("there is a driver here")

    assert lines() == ["GPUs: NVML shows none here: NVML Shared Library Not Found"]


def test_a_driver_that_does_not_answer_is_left_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", threading.Event().wait)

    assert lines(0.3) == ["GPUs: the driver did not answer in time"]


def test_a_gpu_that_does_not_tell_its_load_is_shown_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that is cut into parts."""

    def not_told(_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    driver = ModuleType("pynvml")
    driver.__dict__.update(
        NVMLError=pynvml.NVMLError,
        nvmlInit=int,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetName=lambda _: "H200",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=3e9, total=141e9),
        nvmlDeviceGetUtilizationRates=not_told,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)

    assert lines() == ["GPU 0 H200: load not told, 3.0 of 141.0 GB used"]
