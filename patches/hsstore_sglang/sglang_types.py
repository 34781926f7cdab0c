"""What the hooks use of SGLang's objects, as types. `inventory` says where each comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

Arguments: TypeAlias = Any
"""`ServerArgs` after resolution. Flags come and go with versions: each is read with a default."""
Module: TypeAlias = Any
"""A `torch.nn.Module` of any model."""


class ForwardMode(Protocol):
    """`forward_batch_info.ForwardMode`."""

    def is_extend(self) -> bool:
        """Whether prompts are computed, alone or mixed with decode steps."""

    def is_target_verify(self) -> bool:
        """Whether a draft is verified."""


class ForwardBatch(Protocol):
    """`forward_batch_info.ForwardBatch`."""

    @property
    def forward_mode(self) -> ForwardMode:
        """What it computes."""

    @property
    def rids(self) -> Sequence[str] | None:
        """Requests, in the order of their rows."""

    @property
    def extend_seq_lens_cpu(self) -> Sequence[int]:
        """Rows of each request."""

    @property
    def extend_prefix_lens_cpu(self) -> Sequence[int]:
        """Position of each request's first row."""

    @property
    def input_ids(self) -> torch.Tensor:
        """Shape (T,), padding behind."""


class LogitsOutput(Protocol):
    """`logits_processor.LogitsProcessorOutput`."""

    @property
    def hidden_states(self) -> torch.Tensor | None:
        """Shape (T, K * hidden): the auxiliary states."""

    @property
    def last_hidden_states(self) -> torch.Tensor | None:
        """Shape (T, hidden): after the final norm."""


class RunnerOutput(Protocol):
    """`model_runner.ModelRunnerOutput`."""

    @property
    def logits_output(self) -> LogitsOutput:
        """Where the states are."""


class ModelConfig(Protocol):
    """`model_config.ModelConfig`."""

    @property
    def model_path(self) -> str:
        """Directory, or name on a hub."""

    @property
    def revision(self) -> str | None:
        """On the hub."""

    @property
    def quantization(self) -> str | None:
        """Method, also one that the checkpoint does not name."""

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""

    @property
    def hf_text_config(self) -> Any:  # noqa: ANN401 - of any model
        """Configuration of the decoder."""

    @property
    def context_len(self) -> int:
        """Longest request."""


class ModelRunner(Protocol):
    """`model_runner.ModelRunner`."""

    @property
    def model(self) -> Module:
        """The loaded model."""

    @property
    def model_config(self) -> ModelConfig:
        """What is known of it."""

    @property
    def server_args(self) -> Any:  # noqa: ANN401 - of any model
        """As given on the command line."""

    @property
    def is_draft_worker(self) -> bool:
        """Whether this is a draft model."""

    @property
    def device(self) -> str:
        """`cpu` or `cuda`."""
