"""Run another project's trainer on a machine without an accelerator: ``python cpu.py -m MODULE ARGUMENTS...``.

SpecForge and speculators know accelerators only. What is replaced here is where their code runs, not what
it computes; what they read is left alone.
"""

from __future__ import annotations

import importlib
import logging
import os
import runpy
import sys
import types
from typing import Any

os.environ["SPECFORGE_DEVICE"] = "cpu"
os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch._dynamo  # before the stub of triton: it must not see that


class _LogSoftmaxLoss:
    """SpecForge's loss without its Triton kernel: the formula of its reference."""

    @staticmethod
    def apply(logits: Any, target: Any, mask: Any) -> Any:
        return -(mask * target * logits.float().log_softmax(-1)).sum(-1).mean()


def prepare_specforge() -> None:
    """Import SpecForge's loss, which wants Triton, and replace the kernel."""
    triton: Any = types.ModuleType("triton")
    triton.language = types.ModuleType("triton.language")
    triton.jit = lambda function: function
    triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    triton.language.constexpr = int
    stubs = {"triton": triton, "triton.language": triton.language}
    sys.modules.update(stubs)
    from specforge.core import loss

    for name in stubs:
        del sys.modules[name]
    from specforge.algorithms.eagle3 import model

    loss.LogSoftmaxLoss = model.LogSoftmaxLoss = _LogSoftmaxLoss


def prepare_speculators() -> None:
    """Let its trainer put the model on the CPU."""
    from speculators.train.trainer import Trainer

    setup = Trainer.setup_trainer

    def setup_trainer(self: Any) -> None:
        self.local_rank = self.device_type = "cpu"
        setup(self)

    def print_step(record: logging.LogRecord) -> bool:
        if isinstance(record.msg, dict):
            step = {
                "epoch": record.msg.get("epoch"),
                **record.msg.get("train", {}),
                **record.msg.get("val", {}),
            }
            print(f"step {getattr(record, 'step', 0)}: {step}", flush=True)
        return True

    Trainer.setup_trainer = setup_trainer
    torch.accelerator.synchronize = lambda *_, **__: None
    logging.getLogger("speculators.metrics").addFilter(print_step)  # whole numbers, not rounded


if __name__ == "__main__":
    _, flag, module, *arguments = sys.argv
    if module == "hsstore.integrations.speculators":
        importlib.import_module(module)  # before speculators looks for backends
    if "specforge" in module:
        prepare_specforge()
    else:
        prepare_speculators()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
