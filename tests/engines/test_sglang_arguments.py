"""SGLang's own arguments, after `--`: which are refused, which are warned about."""

from __future__ import annotations

import pytest

from extraction.engines.sglang.arguments import lookup, refuse_dangerous, tp_size, warnings
from hsstore.errors import InputError


@pytest.mark.parametrize(
    "arguments",
    [
        "--model-path elsewhere",
        "--port=1",
        "--host ::",
        "--return-aux-hidden-state-layer-ids 1 2",
        "--speculative-algorithm EAGLE3",
        "--speculative-algo EAGLE3",
        "--speculative-draft-model draft",
        "--enable-two-batch-overlap",
        "--pp-size 2",
        "--pipeline-parallel-size=2",
        "--return-hidden-states-mode last",
        "--disaggregation-mode prefill",
        "--attn-cp-size 2",
        "--is-embedding",
        "--grpc-mode",
        "--node-rank 1",
        "--tp 8 --enable-two-batch",
    ],
)
def test_what_breaks_capture_is_refused_by_name(arguments: str) -> None:
    with pytest.raises(InputError, match=r"^--[a-z-]+.* is refused: \w+"):
        refuse_dangerous(arguments.split())


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--tp-size 8 --dp-size 8 --enable-dp-attention",
        "--pp-size 1 --node-rank=0 --disaggregation-mode null",
        "--speculative-algorithm DFLASH",
        "--return-hidden-states-mode full",
        "--enable-return-hidden-states",
        "--chunked-prefill-size -1 --disable-radix-cache",
        "--trust-remote-code --quantization fp8 --context-length 8192",
        "--disable-flashinfer-autotune --enforce-disable-flashinfer-allreduce-fusion",
    ],
)
def test_what_capture_can_live_with_passes_in_silence(arguments: str) -> None:
    refuse_dangerous(arguments.split())

    assert warnings(arguments.split()) == []


def test_a_second_model_is_not_passed_on() -> None:
    with pytest.raises(InputError, match="SGLang's own arguments go after --"):
        refuse_dangerous(["other", "--tp", "2"])


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ("--config server.yaml", "--config"),
        ("--load-format dummy", "--load-format"),
        ("--lora-paths a=b", "--enable-lora"),
        ("--enable-hicache", "--enable-hierarchical-cache"),
        ("--nnodes 2", "--nnodes"),
        ("--tp 2 --enable-flashinfer-allreduce-fusion", "--enable-flashinfer-allreduce-fusion"),
    ],
)
def test_what_may_go_wrong_is_warned_about_by_name(arguments: str, flag: str) -> None:
    refuse_dangerous(arguments.split())

    (warning,) = warnings(arguments.split())
    assert warning.startswith(f"{flag}: ")


def test_fusion_matters_on_several_gpus_only() -> None:
    assert warnings(["--enable-flashinfer-allreduce-fusion"]) == []


def test_the_last_of_several_values_counts_as_in_sglang() -> None:
    arguments = ["--tp-size", "2", "--tensor-parallel-size=8", "--dp", "4"]

    assert tp_size(arguments) == 8
    assert lookup(arguments, "--dp-size", "--data-parallel-size") == "4"
    assert lookup(arguments, "--device") is None
    assert lookup(["--enable-mis", "--tp", "2"], "--enable-mis") == ""
    assert lookup(["--chunked-prefill-size", "-1"], "--chunked-prefill-size") == "-1"


@pytest.mark.parametrize("value", ["", "two", "--ep"])
def test_a_size_that_is_none_is_left_to_sglang_to_complain_about(value: str) -> None:
    assert tp_size(["--tp", value]) == 1
