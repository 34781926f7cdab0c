"""Configuration by environment, and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from hsstore_sglang.settings import SettingsError, ensure_instance, is_configured, read_settings
from hsstore_sglang.versions import problem_of, warning_of

INSTANCE = str(uuid.UUID(int=1))


def test_the_variables_are_read() -> None:
    settings = read_settings(
        {
            "HSSTORE_SPOOL": "/dev/shm/x",
            "HSSTORE_SPOOL_GROUP": "1234",
            "HSSTORE_LOG": "/tmp/log",
            "HSSTORE_STAGING_MB": "3",
            "HSSTORE_INSTANCE": INSTANCE,
        }
    )

    assert settings.spool == Path("/dev/shm/x")
    assert settings.group == 1234
    assert settings.log == "/tmp/log"
    assert settings.staging_bytes == 3 << 20
    assert settings.instance == INSTANCE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HSSTORE_SPOOL", "relative/path"),
        ("HSSTORE_SPOOL_GROUP", "staff"),
        ("HSSTORE_STAGING_MB", "0"),
        ("HSSTORE_STAGING_MB", "-1"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(name: str, value: str) -> None:
    good = {"HSSTORE_SPOOL": "/dev/shm/x", "HSSTORE_INSTANCE": INSTANCE}

    with pytest.raises(SettingsError, match=f"{name}={value}"):
        read_settings(good | {name: value})


def test_the_first_process_names_the_start_and_the_others_keep_the_name() -> None:
    environment: dict[str, str] = {}

    assert ensure_instance(environment)
    assert not ensure_instance(environment)
    assert uuid.UUID(environment["HSSTORE_INSTANCE"]).version == 4


@pytest.mark.parametrize("environment", [{}, {"HSSTORE_SPOOL": ""}])
def test_without_a_spool_the_plugin_is_not_configured(environment: dict[str, str]) -> None:
    assert not is_configured(environment)


def test_an_inert_plugin_loads_nothing_and_registers_nothing() -> None:
    code = """
import sys
import hsstore_sglang
hsstore_sglang.register()
print([name for name in ("torch", "sglang", "numpy", "hsstore_sglang.plugin") if name in sys.modules])
"""
    environment = {key: value for key, value in os.environ.items() if key != "HSSTORE_SPOOL"}
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )

    assert result.stdout == "[]\n"


def test_an_environment_without_sglang_is_told_so_in_one_line_of_json() -> None:
    command = [sys.executable, "-m", "hsstore_sglang"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)

    answer = json.loads(result.stdout)
    assert set(answer) == {"hsstore", "sglang", "supported", "problem"}
    assert answer["sglang"] is None
    assert answer["supported"] is False
    assert "--no-deps" in answer["problem"]


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post2", "0.5.24", "0.6.0rc1", "1.0.0"])
def test_supported_versions_have_no_problem(version: str) -> None:
    assert problem_of(version) is None


@pytest.mark.parametrize("version", ["0.5.22", "0.5.22.post1", "0.4.99", "main", None])
def test_other_versions_are_refused_with_advice(version: str | None) -> None:
    problem = problem_of(version)

    assert problem is not None
    assert "install" in problem


def test_a_newer_version_than_tested_works_with_a_warning() -> None:
    assert warning_of("0.5.23") is None
    assert "newer" in (warning_of("0.5.24") or "")


def test_a_configured_plugin_in_an_unusable_environment_says_why_and_raises_nothing() -> None:
    code = "import hsstore_sglang; hsstore_sglang.register()"
    result = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"HSSTORE_SPOOL": "/dev/shm/never-made"},
    )

    assert result.stderr.startswith("hsstore: not capturing: no SGLang is installed")
    assert not Path("/dev/shm/never-made").exists()
