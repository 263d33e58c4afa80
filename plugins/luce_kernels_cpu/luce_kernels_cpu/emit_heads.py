"""How heads turn and where they are stored, as C structs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from luce_kernels_cpu import structs
from luce_kernels_cpu.provider import address
from luce_kernels_cpu.structs import Rows
from luce_kernels_cpu.views import NO_ROWS, cache_view

_NO_NORM: Mapping[str, Any] = MappingProxyType({"weight": None, "eps": 0.0})


def rope_args(constants: Mapping[str, Any], x: Rows, out: Rows) -> structs.RopeArgs:
    """`constants` are those of the op and of its heads."""
    return structs.RopeArgs(
        x,
        address(constants["inv_freq"]),
        constants["heads"],
        constants["dim"],
        constants["rotary_dim"] // 2,
        constants["interleaved"],
        constants["attention_factor"],
        out,
    )


def rope_write_args(
    constants: Mapping[str, Any],
    caches: tuple[Tensor, ...],
    *,
    q: Rows,
    k: Rows,
    v: Rows,
    out: Rows,
) -> structs.RopeWriteArgs:
    """`constants` are those of a ROPE_WRITE."""
    facts = constants["facts"]
    q_norm, k_norm = constants["q_norm"] or _NO_NORM, constants["k_norm"] or _NO_NORM
    k_cache, v_cache = caches
    return structs.RopeWriteArgs(
        rope_args(constants["q"], q, out),
        rope_args(constants["k"], k, NO_ROWS),
        address(q_norm["weight"]),
        address(k_norm["weight"]),
        q_norm["eps"],
        k_norm["eps"],
        v,
        cache_view(k_cache, facts["k_type"], facts),
        cache_view(v_cache, facts["v_type"], facts),
    )
