"""How an answer is generated: SGLang's `sampling_params`, as far as they are understood here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """What one generated answer may be."""

    max_new_tokens: int
    temperature: float = 0.0
    """0: always the most likely token."""
    stop_token_ids: frozenset[int] = frozenset()
    """An answer ends with one of these, or of the model's own."""


def parse_sampling(params: Any) -> Sampling:  # noqa: ANN401  # JSON
    """Check the `sampling_params` of one request.

    >>> parse_sampling({"max_new_tokens": 5, "temperature": 0})
    Sampling(max_new_tokens=5, temperature=0, stop_token_ids=frozenset())

    Raises
    ------
    ValueError
        Naming the field.
    """
    given = dict(params) if isinstance(params, dict) else {}
    tokens = given.pop("max_new_tokens", None)
    temperature = given.pop("temperature", 1.0)  # SGLang's default
    stops = given.pop("stop_token_ids", None) or []
    if type(tokens) is not int or tokens < 1:
        raise ValueError("sampling_params.max_new_tokens must be an integer of at least 1")
    if type(temperature) not in {int, float} or temperature < 0:
        raise ValueError("sampling_params.temperature must be a number of at least 0")
    if not isinstance(stops, list) or any(type(token) is not int for token in stops):
        raise ValueError("sampling_params.stop_token_ids must be a list of integers")
    if given:
        raise ValueError(f"sampling_params.{min(given)} is not supported by this engine")
    return Sampling(tokens, temperature, frozenset(stops))
