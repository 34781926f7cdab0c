"""What a user asked `hsstore regenerate` to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from extraction.options import Place
from hsstore.spec import Record


class RegenerateOptions(Record):
    """One run."""

    prompts: Place
    output: Path
    server: str
    """Base URL; no secret is in it."""
    model: Path
    """The model's directory: tokenizer and chat template."""
    api_key_file: Path | None = None
    ca_cert: Path | None = None
    max_new_tokens: int = 1024
    """Of one answer."""
    temperature: float = 0.0
    max_in_flight: int = 64
    """Conversations at once."""
    limit: int | None = None
    """Of the prompts."""
    skip_bad: bool = False
    """Count wrong records and go on."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    trust_remote_code: bool = False
    request_timeout_seconds: float = 1800.0
    """For one answer."""
    server_wait_seconds: float = 600.0
