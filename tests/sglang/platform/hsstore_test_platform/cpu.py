"""The platform: plain torch, and the few seams where SGLang expects more of a device."""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class PlainCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]  # not in this environment
    """An x86 CPU with nothing but torch."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        """Scaled dot product attention of torch."""
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        """Make fused operators take their `forward_native`."""
        return "native"

    def get_torch_profiler_activity_str(self) -> str:
        """Profile what there is."""
        return "CPU"

    def init_backend(self) -> None:
        """Run once in each worker, before its model is built."""
        _read_mla_from_the_pool()
        _allow_data_parallel_attention()


def _read_mla_from_the_pool() -> None:
    """Force the absorbed path of MLA.

    `torch_native` ignores the keys and values it is given and reads the pool; on the default path of
    a prefill, the unabsorbed one, DeepSeek and Kimi would be wrong without a word.
    """
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
        AttnForwardMethod,
    )

    AttentionBackendRegistry.register("torch_native", lambda *_: AttnForwardMethod.MLA)


def _allow_data_parallel_attention() -> None:
    """Bring what the Triton and graph backends bring elsewhere."""
    import torch
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers import dp_attention
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    plain = torch.tensor

    def without_pinning(*arguments: Any, pin_memory: bool = False, **more: Any) -> Any:
        return plain(*arguments, **more)  # a CPU torch has no pinned allocator

    torch.tensor = without_pinning
    dp_attention.memcpy_func = dp_attention.memcpy_cpu
    TorchNativeAttnBackend.get_cuda_graph_seq_len_fill_value = lambda _: 1
    parallel_state._is_cpu = True  # gloo's all-gather instead of an operator of the device
