"""The best of some values, as torch's argmax has it."""

from __future__ import annotations

import triton
import triton.language as tl

_NONE = tl.constexpr(2147483647)


@triton.jit
def first_best(values, numbers, inside):
    """(value, number) of the largest value with `inside`, of equals the one with the lowest number.
    A NaN is larger than all. float32 and int32 [N], of which at least one is inside."""
    is_nan = inside & (values != values)
    first_nan = tl.min(tl.where(is_nan, numbers, _NONE), 0)
    ranked = tl.where(inside & (values == values), values, -float("inf"))
    best = tl.max(ranked, 0)
    number = tl.min(tl.where(inside & (values == best), numbers, _NONE), 0)
    has_nan = first_nan < _NONE
    return tl.where(has_nan, float("nan"), best), tl.where(has_nan, first_nan, number)
