"""The environment and the command that start SGLang."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extraction.engines.sglang.checkpoint import Checkpoint, capturable_layers, read_checkpoint
from extraction.engines.sglang.command import Host, Launch, launch
from extraction.engines.sglang.options import SglangOptions
from extraction.engines.sglang.serve import print_command, server_url
from hsstore.errors import InputError

CHECKPOINT = Checkpoint(Path("/models/kimi k2.5"), 61, "bfloat16")
OPTIONS = SglangOptions(CHECKPOINT.path, Path("/sglang/bin/python"))
GPU = Host({"PATH": "/usr/bin"}, accelerator=True, cores=(0, 1, 2, 3))
CPU = replace(GPU, accelerator=False)


def command(
    *arguments: str, host: Host = GPU, checkpoint: Checkpoint = CHECKPOINT, **options: Any
) -> Launch:
    wanted = replace(OPTIONS, arguments=arguments, **options)
    return launch(wanted, checkpoint, host, port=30000, spool=Path("/dev/shm/hsstore-0/30000"))


def flags(of: Launch) -> dict[str, list[str]]:
    """Each flag of the command with its values; refuses a flag given twice."""
    found: dict[str, list[str]] = {}
    for word in of.argv[3:]:
        if word.startswith("--"):
            assert word not in found
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def test_the_states_of_eagle3_are_captured_in_the_one_convention() -> None:
    given = flags(command())

    assert given["--model-path"] == ["/models/kimi k2.5"]
    assert given["--enable-return-aux-hidden-states"] == []
    assert given["--speculative-algorithm"] == ["DFLASH"]
    assert given["--return-aux-hidden-state-layer-ids"] == ["1", "29", "57"]


def test_radix_cache_and_chunked_prefill_stay_on() -> None:
    for host in (GPU, CPU):
        given = flags(command(host=host))
        assert "--disable-radix-cache" not in given
        assert given.get("--chunked-prefill-size") != ["-1"]


def test_a_gpu_gets_no_graphs_for_decoding_and_no_settings_for_a_cpu() -> None:
    made = command()

    assert "--disable-decode-cuda-graph" in flags(made)
    assert "--device" not in flags(made)
    assert "--mem-fraction-static" not in flags(made)
    assert list(made.environment) == ["HSSTORE_SPOOL"]


def test_the_tokenizer_is_loaded_only_where_text_is_wanted() -> None:
    skip = "--skip-tokenizer-init"

    assert skip in flags(command())
    assert skip not in flags(command("--tokenizer-path", "/models/kimi"))
    assert skip not in flags(command("--tool-call-parser=kimi_k2"))


def test_fusion_that_leaves_partial_sums_is_off_on_several_gpus() -> None:
    off = "--enforce-disable-flashinfer-allreduce-fusion"

    assert off not in flags(command())
    assert off in flags(command("--tp", "8"))
    assert off not in flags(command("--tp", "8", "--enable-flashinfer-allreduce-fusion"))


@pytest.mark.parametrize(
    ("host", "arguments"), [(CPU, []), (GPU, ["--device", "cpu"]), (GPU, ["--device=cpu"])]
)
def test_a_cpu_gets_its_settings(host: Host, arguments: list[str]) -> None:
    made = command(*arguments, host=host)

    assert {"--max-total-tokens", "--mem-fraction-static"} <= set(flags(made))
    assert "--disable-decode-cuda-graph" not in flags(made)
    assert made.environment["TORCHDYNAMO_DISABLE"] == "1"


def test_a_device_that_is_named_needs_no_gpu_here() -> None:
    assert "--max-total-tokens" not in flags(command("--device", "cuda", host=CPU))


@pytest.mark.parametrize(
    ("ranks", "cores", "shares"),
    [(2, (0, 1, 2, 3), "0,1|2,3"), (2, (4, 7), "4|7"), (2, (5,), "5|5"), (3, (0, 1), "0|1|0")],
)
def test_ranks_on_a_cpu_are_told_their_cores(
    ranks: int, cores: tuple[int, ...], shares: str
) -> None:
    made = command("--tp-size", str(ranks), host=replace(CPU, cores=cores))

    assert made.environment["SGLANG_CPU_OMP_THREADS_BIND"] == shares


def test_replicas_on_a_cpu_are_ranks_too() -> None:
    made = command("--dp-size", "2", host=replace(CPU, cores=(0, 1)))

    assert made.environment["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"


@pytest.mark.parametrize(
    "given",
    [
        ["--skip-tokenizer-init"],
        ["--max-total-tokens=100"],
        ["--chunked-prefill-size", "64"],
        ["--mem-frac", "0.9"],
        ["--log-level-http=info"],
        ["--enable-return-aux-hidden-states"],
    ],
)
def test_arguments_after_the_dashes_win(given: list[str]) -> None:
    made = command(*given, host=CPU)

    assert made.argv[-len(given) :] == tuple(given)
    name = given[0].partition("=")[0]
    assert sum(word.startswith(name) for word in made.argv) == 1


def test_a_flag_is_not_taken_for_the_beginning_of_another() -> None:
    given = flags(command("--log-level", "debug"))

    assert given["--log-level"] == ["debug"]
    assert given["--log-level-http"] == ["warning"]


def test_what_people_have_set_in_the_environment_is_left_alone() -> None:
    mine = {"TORCHDYNAMO_DISABLE": "0", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    made = command("--tp", "2", host=replace(CPU, environment=mine))

    assert list(made.environment) == ["HSSTORE_SPOOL"]
    assert made.full_environment(mine) == {
        **mine,
        "PATH": "/sglang/bin",
        "HSSTORE_SPOOL": "/dev/shm/hsstore-0/30000",
    }


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [("", None), ("other", "other,hsstore"), ("other, hsstore", None)],
)
def test_a_list_of_allowed_plugins_gets_ours(allowed: str, expected: str | None) -> None:
    made = command(host=replace(GPU, environment={"SGLANG_PLUGINS": allowed}))

    assert made.environment.get("SGLANG_PLUGINS") == expected


def test_group_and_log_are_told_to_the_plugin() -> None:
    made = command(spool_group=1000, log=Path("/logs/sglang.log"))

    assert made.environment["HSSTORE_SPOOL_GROUP"] == "1000"
    assert made.environment["HSSTORE_LOG"] == "/logs/sglang.log"


@pytest.mark.parametrize(
    ("of_checkpoint", "wanted", "expected"),
    [
        ("bfloat16", None, None),
        ("float16", None, None),
        ("float32", None, ["float32"]),
        (None, None, None),
        ("float32", "bfloat16", ["bfloat16"]),
    ],
)
def test_float32_weights_do_not_become_float16_in_silence(
    of_checkpoint: str | None, wanted: str | None, expected: list[str] | None
) -> None:
    made = command(checkpoint=replace(CHECKPOINT, dtype=of_checkpoint), dtype=wanted)

    assert flags(made).get("--dtype") == expected


def test_the_printed_command_does_what_the_started_one_does(tmp_path: Path) -> None:
    """A shell runs it, with a program that shows what it got in the place of Python."""
    python = tmp_path / "bin dir" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nenv; printf "%s\\n" "$@"\n')
    python.chmod(0o755)
    made = command("--json", '{"a": "$HOME \'x\'"}', host=CPU, python=python)

    output = subprocess.run(
        ["/bin/sh", "-c", made.shell()],
        env={"PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()

    assert output[-len(made.argv) + 1 :] == list(made.argv[1:])
    expected = made.full_environment({"PATH": "/usr/bin:/bin"})
    assert {f"{name}={value}" for name, value in expected.items()} <= set(output)


def test_printing_needs_no_sglang_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 61}')
    python = Path("/in/a/container/python")
    print_command(
        SglangOptions(tmp_path, python, port=0, log=Path("a.log"), arguments=("--device", "cuda"))
    )

    text, said = capsys.readouterr()
    words = shlex.split(text.replace("\\\n", " "))
    assert str(python) in words
    assert "HSSTORE_LOG=" + str(Path("a.log").absolute()) in words
    assert words[-2:] == [">a.log", "2>&1"]
    assert said == ""


@pytest.mark.parametrize("where", ["top", "text_config"])
def test_layers_and_dtype_are_found_in_the_text_model_too(tmp_path: Path, where: str) -> None:
    about = {"num_hidden_layers": 61, "torch_dtype": "float32"}
    config = about if where == "top" else {"text_config": about, "vision_config": {"depth": 27}}
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert read_checkpoint(tmp_path) == Checkpoint(tmp_path, 61, "float32")


def test_a_model_that_is_not_here_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hf download moonshotai/Kimi-K2\.5 --local-dir"):
        read_checkpoint(Path("moonshotai/Kimi-K2.5"))
    with pytest.raises(InputError, match=r"on this machine$"):  # a path, which no hub knows
        read_checkpoint(tmp_path / "missing")
    with pytest.raises(InputError, match=r"no config\.json"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="does not say num_hidden_layers"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        read_checkpoint(tmp_path)


def test_the_last_layer_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match="as a slot of its own: leave 60 out"):
        capturable_layers((1, 60), 61)
    with pytest.raises(InputError, match=r"in 0\.\.60"):
        capturable_layers((61,), 61)

    assert capturable_layers((59, 0), 61) == (0, 59)


@pytest.mark.parametrize(
    ("host", "arguments", "url"),
    [
        ("127.0.0.1", (), "http://127.0.0.1:30000"),
        ("0.0.0.0", (), "http://127.0.0.1:30000"),
        ("::", ("--ssl-certfile", "c.pem"), "https://[::1]:30000"),
        ("node7", (), "http://node7:30000"),
    ],
)
def test_the_url_is_one_that_a_client_here_can_use(
    host: str, arguments: tuple[str, ...], url: str
) -> None:
    assert server_url(replace(OPTIONS, host=host, arguments=arguments), 30000) == url
