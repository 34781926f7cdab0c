"""What docs/operations promises exists: metrics, options, files that their programs accept."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry
from typer.main import get_command

from extraction.metrics import RunCollector, Vitals
from extraction.status import RunStatus, ServerState, StageState
from hsstore.cli.app import app
from tests.extraction.processes import wait_until

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
METRIC = re.compile(r"\bhsstore_[a-z0-9_]+\b")


def catches(pid: int, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal."""
    (mask,) = re.findall(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) >> (number - 1) & 1)


def exported() -> dict[str, set[str]]:
    """Return the labels of every metric, by name."""
    stages = (StageState(name="write", items=1, detail="x"),)
    servers = (ServerState(url="http://a", spool="/a"),)
    status = RunStatus(run="r", stages=stages, servers=servers)
    registry = CollectorRegistry()
    registry.register(RunCollector(lambda: Vitals(status, None, 0.0, 0, 0)))
    return {
        sample.name: set(sample.labels)
        for family in registry.collect()
        for sample in family.samples
    }


def expressions() -> list[str]:
    """Return the queries of the dashboard."""
    dashboard = json.loads((OPERATIONS / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 10
    return queries


def test_every_metric_of_the_dashboard_exists_with_its_labels() -> None:
    known = exported()
    for expression in expressions():
        for name, selector in re.findall(r"(hsstore_[a-z0-9_]+)\{([^}]*)\}", expression):
            labels = set(re.findall(r"(\w+)\s*=", selector)) - {"instance"}
            assert name in known, expression
            assert labels <= known[name], expression
        assert METRIC.findall(expression)


def test_the_page_names_every_metric_and_no_other() -> None:
    written = set(METRIC.findall((OPERATIONS / "README.md").read_text()))

    assert written == set(exported())


@pytest.mark.parametrize("name", ["hsstore-extract.service", "extract.sbatch", "job.yaml"])
def test_every_option_in_an_example_exists(name: str) -> None:
    text = "\n".join(
        line for line in (OPERATIONS / name).read_text().splitlines() if "#SBATCH" not in line
    )
    commands = get_command(app).commands  # type: ignore[attr-defined]
    known = {
        option
        for command in ("extract", "serve")
        for parameter in commands[command].params
        for option in parameter.opts
    }
    engine = {"--tp-size"}
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))

    assert used
    assert used - engine <= known


def test_the_slurm_script_is_valid_and_requeues_on_75() -> None:
    script = OPERATIONS / "extract.sbatch"

    subprocess.run(["bash", "-n", script], check=True)

    assert '"$code" -eq 75' in script.read_text()
    assert "scontrol requeue" in script.read_text()


def test_the_slurm_script_gives_the_signal_on_and_requeues(tmp_path: Path) -> None:
    """With programs in place of Slurm's and ours that note how they were called."""
    log = tmp_path / "log"
    for program, body in {
        "hsstore": '[ "$1" = serve ] && { echo "$@" >> LOG; exec sleep 60; }\n'
        'trap "echo told >> LOG; exit 75" TERM; echo "$@" >> LOG; while :; do sleep 0.1; done',
        "scontrol": 'echo scontrol "$@" >> LOG',
    }.items():
        path = tmp_path / program
        path.write_text("#!/bin/bash\n" + body.replace("LOG", str(log)) + "\n")
        path.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "MODEL": "/model",
        "STORE": "/data/s.zarr",
        "SLURM_JOB_ID": "7",
    }
    job = subprocess.Popen(
        ["bash", OPERATIONS / "extract.sbatch"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        while not log.exists() or "extract /data/s.zarr" not in log.read_text():
            assert job.poll() is None
        wait_until(lambda: catches(job.pid, signal.SIGUSR1))
        job.send_signal(signal.SIGUSR1)  # as --signal=B:USR1 does
        output, _ = job.communicate(timeout=60)
    finally:
        job.kill()

    assert job.returncode == 75
    assert b"requeued" in output
    assert log.read_text().splitlines()[-2:] == ["told", "scontrol requeue 7"]


def test_the_kubernetes_job_shares_memory_and_knows_the_exit_codes() -> None:
    job: dict[str, Any] = yaml.safe_load((OPERATIONS / "job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    rules = {
        rule["action"]: rule["onExitCodes"] for rule in job["spec"]["podFailurePolicy"]["rules"]
    }

    assert rules["Ignore"]["values"] == [75]
    assert rules["FailJob"]["values"] == [1, 2, 3, 70, 74]
    assert "--take-over" in pod["containers"][0]["command"]
    assert job["spec"]["parallelism"] == 1
    assert rules["Ignore"]["containerName"] in {one["name"] for one in pod["containers"]}
    for container in (*pod["containers"], *pod["initContainers"]):
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit() -> None:
    unit = OPERATIONS / "hsstore-extract.service"

    result = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )

    complaints = [line for line in result.stderr.splitlines() if "is not executable" not in line]
    assert complaints == []
