"""SGLang's own arguments, as given after `--`: what is in them, and what must not be.

Names were read in SGLang 0.5.23. Its parser takes unambiguous abbreviations, so they count here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Rule:
    """A flag that capture cannot live with, or may suffer from."""

    flags: tuple[str, ...]
    why: str
    harmless: frozenset[str] = frozenset()
    """Values with which the flag means nothing."""


_OURS: Final = (
    Rule(("--model-path", "--model"), "it is MODEL, before the --"),
    Rule(("--host",), "give --host before the --"),
    Rule(("--port",), "give --port before the --"),
    Rule(("--return-aux-hidden-state-layer-ids",), "give --layers before the --"),
    Rule(
        ("--speculative-algorithm",),
        "here it names the convention of the layer ids, and only DFLASH's is the same for all models",
        frozenset({"DFLASH"}),
    ),
)

_REFUSED: Final = (
    *_OURS,
    Rule(
        ("--enable-two-batch-overlap",),
        "layers that run as two overlapping batches are not captured",
    ),
    Rule(
        ("--pp-size", "--pipeline-parallel-size"),
        "only the layers of the last pipeline stage would be seen",
        frozenset({"1"}),
    ),
    Rule(
        ("--speculative-draft-model-path", "--speculative-draft-model"),
        "SGLang captures without a draft model or not at all",
    ),
    Rule(
        ("--return-hidden-states-mode",),
        "every row of a prompt is needed, not the last one",
        frozenset({"full"}),
    ),
    Rule(
        ("--disaggregation-mode",),
        "prefill and decode on different servers was never tried with capture",
        frozenset({"null"}),
    ),
    Rule(
        ("--attn-cp-size", "--attention-context-parallel-size"),
        "the rows of a prompt would be spread over ranks, in another order",
        frozenset({"1"}),
    ),
    Rule(("--enable-prefill-cp",), "the rows of a prompt would be spread over ranks"),
    Rule(("--enable-layernorm-sp",), "the rows of a prompt would be spread over ranks"),
    Rule(("--enable-attn-tp-input-scattered",), "the rows of a prompt would be spread over ranks"),
    Rule(("--enable-pdmux",), "prefill beside decode was never tried with capture"),
    Rule(("--is-embedding",), "an embedding model answers no /generate"),
    Rule(("--enable-mis",), "scored items take another way through the model"),
    Rule(("--dllm-algorithm",), "diffusion models have no states in this sense"),
    Rule(("--encoder-only",), "there is no language model in it"),
    Rule(("--use-ray",), "the ranks would not be in this process group"),
    Rule(("--grpc-mode", "--smg-grpc-mode"), "requests come over HTTP"),
    Rule(
        ("--node-rank",),
        "hsstore serve starts the first node; start the others with their own command and without "
        "HSSTORE_SPOOL",
        frozenset({"0"}),
    ),
)

_WARNED: Final = (
    Rule(("--config",), "what is in that file is not checked for flags that break capture"),
    Rule(("--load-format",), "random weights, states without meaning", frozenset({"auto"})),
    Rule(
        ("--enable-lora", "--lora-paths"),
        "adapters change the states and are not in the capture hash",
    ),
    Rule(
        ("--json-model-override-args",),
        "what it changes may not be in the capture hash",
    ),
    Rule(
        ("--enable-quant-communications",),
        "sums between GPUs are rounded, and the states with them",
    ),
    Rule(("--enable-single-batch-overlap",), "it was never tried with capture"),
    Rule(("--enable-mixed-chunk",), "it was never tried with capture, and brings nothing here"),
    Rule(
        ("--enable-hierarchical-cache", "--enable-hicache", "--enable-lmcache", "--enable-flexkv"),
        "a row that comes from a cache is not computed, so not captured",
    ),
    Rule(
        ("--nnodes",),
        "several nodes were never tried, and with DP attention the other nodes' samples get lost",
        frozenset({"1"}),
    ),
)

_FUSION: Final = Rule(
    (
        "--enable-flashinfer-allreduce-fusion",
        "--flashinfer-allreduce-fusion-backend",
        "--enable-aiter-allreduce-fusion",
    ),
    "a fused all-reduce leaves partial sums where states are captured; it was never tried",
)


_NO_ABBREVIATIONS: Final = {"--log-level"}
"""Flags of their own, although longer ones begin like them."""


def lookup(arguments: Sequence[str], *flags: str) -> str | None:
    """Return the last value of a flag or of one of its aliases; None where it is not given.

    A flag without a value gives the empty string.

    >>> lookup(["--tp", "2"], "--tp-size"), lookup(["--tp-size=4"], "--tp-size")
    ('2', '4')
    """
    found = None
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if _means(name, flags):
            following = "".join(arguments[position + 1 : position + 2])
            found = value if equals else "" if following.startswith("--") else following
    return found


def _means(name: str, flags: Sequence[str]) -> bool:
    if len(name) <= 2 or not name.startswith("--") or name in _NO_ABBREVIATIONS:
        return False
    return any(flag.startswith(name) for flag in flags)


def refuse_dangerous(arguments: Sequence[str]) -> None:
    """Refuse what would be captured wrongly or not at all.

    Raises
    ------
    InputError
        Names the flag and says why.
    """
    if arguments and not arguments[0].startswith("-"):
        raise InputError(f"{arguments[0]}: one MODEL only; SGLang's own arguments go after --")
    for rule in _REFUSED:
        value = _breaks(rule, arguments)
        if value is not None:
            raise InputError(f"{rule.flags[0]} {value}".rstrip() + f" is refused: {rule.why}")


def warnings(arguments: Sequence[str]) -> list[str]:
    """List what may go wrong, a line each."""
    rules = [*_WARNED, _FUSION] if tp_size(arguments) > 1 else _WARNED
    given = [(rule, _breaks(rule, arguments)) for rule in rules]
    return [f"{rule.flags[0]}: {rule.why}" for rule, value in given if value is not None]


def tp_size(arguments: Sequence[str]) -> int:
    """Return the tensor parallel size; 1 where the value is SGLang's to complain about."""
    return _size(arguments, "--tp-size", "--tensor-parallel-size")


def ranks(arguments: Sequence[str]) -> int:
    """Count the processes that compute: tensor parallel ranks of all replicas.

    >>> ranks(["--tp", "2", "--dp-size", "3"]), ranks(["--tp", "2", "--dp", "2", "--enable-dp-attention"])
    (6, 2)
    """
    within = lookup(arguments, "--enable-dp-attention") is not None  # replicas of attention only
    replicas = 1 if within else _size(arguments, "--dp-size", "--data-parallel-size")
    return tp_size(arguments) * replicas


def wants_fusion(arguments: Sequence[str]) -> bool:
    """Tell whether the all-reduce fusion was asked for by name."""
    return lookup(arguments, *_FUSION.flags) is not None


def _size(arguments: Sequence[str], *flags: str) -> int:
    value = lookup(arguments, *flags) or ""
    return int(value) if value.isdigit() else 1


def _breaks(rule: Rule, arguments: Sequence[str]) -> str | None:
    value = lookup(arguments, *rule.flags)
    return None if value is None or value in rule.harmless else value
