"""The environment and the command that start SGLang; pure.

Only what differs from SGLang's own defaults is set. Radix cache and chunked prefill stay on: every
request carries a key of its own, so the cache never answers for a row, and a prompt arrives in
pieces of any size.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from extraction.engines.sglang.arguments import lookup, ranks, tp_size, wants_fusion
from extraction.engines.sglang.checkpoint import capturable_layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from extraction.engines.sglang.checkpoint import Checkpoint
    from extraction.engines.sglang.options import SglangOptions

PLUGIN: Final = "hsstore"
"""Our name among SGLang's plugins."""

CPU_TOKENS: Final = 32768
CPU_CHUNK: Final = 2048


_ABOUT_TEXT: Final = (
    "--tokenizer-path",
    "--tokenizer-mode",
    "--tokenizer-backend",
    "--chat-template",
    "--tool-call-parser",
    "--reasoning-parser",
)


@dataclass(frozen=True, slots=True)
class Host:
    """What the command depends on besides the options."""

    environment: Mapping[str, str]
    """Of this process: what people have set there is left alone."""
    accelerator: bool
    """There is a GPU."""
    cores: tuple[int, ...]
    """CPUs this process may use."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How SGLang is started."""

    environment: dict[str, str]
    """To be set on top of what is inherited."""
    path_first: str
    """Directory to put in front of PATH: kernels compiled at run time look for `ninja` there."""
    argv: tuple[str, ...]

    def full_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Merge with what is inherited."""
        path = f"{self.path_first}:{inherited.get('PATH', '')}".removesuffix(":")
        return {**inherited, "PATH": path, **self.environment}

    def shell(self) -> str:
        """Write it for a POSIX shell, a flag a line."""
        lines = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        lines.append(f'PATH={shlex.quote(self.path_first)}:"$PATH"')
        lines.append(shlex.join(self.argv[:3]))
        lines.extend("  " + shlex.join(words) for words in _by_flag(self.argv[3:]))
        return " \\\n".join(lines)


def on_cpu(options: SglangOptions, host: Host) -> bool:
    """Tell whether SGLang will compute on the CPU."""
    device = lookup(options.arguments, "--device")
    return device == "cpu" if device else not host.accelerator


def launch(
    options: SglangOptions, checkpoint: Checkpoint, host: Host, *, port: int, spool: Path
) -> Launch:
    """Build the environment and the command.

    Raises
    ------
    InputError
        The layers cannot be captured.
    """
    chosen = _capture(options, checkpoint, port) | _sizes(options, checkpoint, host)
    ours = [
        word
        for flag, values in chosen.items()
        if lookup(options.arguments, flag) is None
        for word in (flag, *values)
    ]
    return Launch(
        environment=_environment(options, host, spool),
        path_first=str(options.python.parent),
        argv=(str(options.python), "-m", "sglang.launch_server", *ours, *options.arguments),
    )


def _capture(
    options: SglangOptions, checkpoint: Checkpoint, port: int
) -> dict[str, tuple[str, ...]]:
    layers = capturable_layers(options.layers, checkpoint.num_layers)
    return {
        "--model-path": (str(checkpoint.path),),
        "--host": (options.host,),
        "--port": (str(port),),
        # The algorithm names a convention only, no draft model is loaded. DFLASH's is the one that
        # means the output of the 0-based layer for every model.
        "--enable-return-aux-hidden-states": (),
        "--speculative-algorithm": ("DFLASH",),
        "--return-aux-hidden-state-layer-ids": tuple(map(str, layers)),
    }


def _sizes(
    options: SglangOptions, checkpoint: Checkpoint, host: Host
) -> dict[str, tuple[str, ...]]:
    """Choose what prefill-only work needs.

    The chunk on a GPU is SGLang's to choose: by the GPU's memory, 2 to 16 thousand rows, which is
    where prefill is at its best and what it reserves activations for. No request is ever decoded,
    so a batch of requests needs no room beyond its prompts and no limit of ours.
    """
    sizes: dict[str, tuple[str, ...]] = {}
    if lookup(options.arguments, *_ABOUT_TEXT) is None:
        # Tokens go in and states come out. Lost are chat, completions and text in answers, which a
        # server for capture does not need; who says how text is treated wants them.
        sizes["--skip-tokenizer-init"] = ()
    # A line a request fills a disk and tells nothing.
    sizes["--log-level-http"] = ("warning",)
    dtype = options.dtype or _unless_auto(checkpoint.dtype)
    if dtype:
        sizes["--dtype"] = (dtype,)
    return sizes | (_cpu() if on_cpu(options, host) else _gpu(options))


def _gpu(options: SglangOptions) -> dict[str, tuple[str, ...]]:
    # Graphs for decoding cost memory and up to a minute at start, and would never be replayed.
    sizes: dict[str, tuple[str, ...]] = {"--disable-decode-cuda-graph": ()}
    if tp_size(options.arguments) > 1 and not wants_fusion(options.arguments):
        # SGLang turns the fusion on by itself for some models (DeepSeek, Kimi) on Hopper and later:
        # sums are then still partial where aux states are taken. Off until it was tried.
        sizes["--enforce-disable-flashinfer-allreduce-fusion"] = ()
    return sizes


def _cpu() -> dict[str, tuple[str, ...]]:
    return {
        "--device": ("cpu",),
        # Otherwise half of the memory becomes KV cache, and is touched at start.
        "--max-total-tokens": (str(CPU_TOKENS),),
        # The automatic value is what a GPU leaves after its activations: it can be negative here.
        "--mem-fraction-static": ("0.5",),
        # Attention in plain torch holds rows x context x heads floats.
        "--chunked-prefill-size": (str(CPU_CHUNK),),
    }


def _environment(options: SglangOptions, host: Host, spool: Path) -> dict[str, str]:
    environment = {"HSSTORE_SPOOL": str(spool)}
    if options.spool_group is not None:
        environment["HSSTORE_SPOOL_GROUP"] = str(options.spool_group)
    if options.log is not None:
        environment["HSSTORE_LOG"] = str(options.log.absolute())
    allowed = host.environment.get("SGLANG_PLUGINS", "")
    if allowed and PLUGIN not in [name.strip() for name in allowed.split(",")]:
        environment["SGLANG_PLUGINS"] = f"{allowed},{PLUGIN}"
    if on_cpu(options, host):
        environment |= _cpu_environment(options, host)
    return environment


def _cpu_environment(options: SglangOptions, host: Host) -> dict[str, str]:
    environment = {}
    # Compiling the MoE gate takes longer than a short run, and no request is answered meanwhile.
    if "TORCHDYNAMO_DISABLE" not in host.environment:
        environment["TORCHDYNAMO_DISABLE"] = "1"
    count = ranks(options.arguments)
    if count > 1 and "SGLANG_CPU_OMP_THREADS_BIND" not in host.environment:
        # SGLang refuses more ranks than NUMA nodes unless it is told which cores are whose.
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(_shares(host.cores, count))
    return environment


def _shares(cores: Sequence[int], ranks: int) -> Iterator[str]:
    """Divide the cores among ranks; with fewer cores than ranks, some are shared."""
    each = max(1, len(cores) // ranks)
    for rank in range(ranks):
        start = rank * each % len(cores)
        yield ",".join(map(str, cores[start : start + each]))


def _unless_auto(dtype: str | None) -> str | None:
    """SGLang's `auto` keeps bfloat16 and float16, but serves float32 weights as float16."""
    return dtype if dtype == "float32" else None


def _by_flag(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Group each flag with its values."""
    count = 0

    def number(word: str) -> int:
        nonlocal count
        count += word.startswith("--")
        return count

    for _, words in groupby(arguments, key=number):
        yield list(words)
