"""Judging raw bit patterns gives what judging the numbers gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.dtype import bits_dtype, infinity_bits, largest_magnitude, native_dtype

if TYPE_CHECKING:
    from hsstore.dtype import DTypeName


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_bits_tell_zeros_and_what_is_not_finite_as_the_numbers_do(name: DTypeName) -> None:
    bits = bits_dtype(name)
    every = np.arange(1 << 16, dtype=bits) << (8 * bits.itemsize - 16)
    pairs = np.stack([every, np.full_like(every, 1 << (8 * bits.itemsize - 1))], axis=-1)  # x, -0.0

    largest = largest_magnitude(pairs, name)

    numbers = every.view(native_dtype(name)).astype(np.float32)
    assert np.array_equal(largest >= infinity_bits(name), ~np.isfinite(numbers))
    assert np.array_equal(largest == 0, numbers == 0)
