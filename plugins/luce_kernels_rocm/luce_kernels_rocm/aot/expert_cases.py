"""Calls of ops of hybrid and mixture-of-experts models, at the shapes of such models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from luce_core.weights.quant_types import QUANT_TYPES
from luce_kernels_rocm.aot.steps import step
from luce_kernels_rocm.ops.affine import affine
from luce_kernels_rocm.ops.gated_rms_norm import gated_rms_norm
from luce_kernels_rocm.ops.moe_matmul import moe_matmul
from luce_kernels_rocm.ops.moe_route import moe_route
from luce_kernels_rocm.ops.moe_scale import moe_scale
from luce_kernels_rocm.ops.moe_sum import moe_sum
from luce_kernels_rocm.ops.put_rows import put_rows
from luce_kernels_rocm.ops.sigmoid_gate import sigmoid_gate
from luce_kernels_rocm.ops.take_rows import take_rows

WIDTH = 2048
EXPERTS = 256
TOP_K = 8
ROWS = 4

Call = tuple[str, Callable[[], None], bool]


def expert_calls(dtype: torch.dtype) -> Iterator[Call]:
    """(name, call, whether a decode step makes it)."""
    logits = torch.empty(ROWS, EXPERTS, dtype=dtype)
    route = torch.empty(ROWS, 2, TOP_K)
    for scoring, bias in (("softmax", None), ("sqrt_softplus", torch.empty(EXPERTS))):
        facts: dict[str, Any] = {
            "experts": EXPERTS,
            "top_k": TOP_K,
            "scoring": scoring,
            "scale": 1.5,
        }
        yield f"moe_route {scoring}", partial(moe_route, logits, bias, route, **facts), True
    parts, row = torch.empty(ROWS, TOP_K, WIDTH, dtype=dtype), torch.empty(ROWS, WIDTH, dtype=dtype)
    yield "moe_sum", partial(moe_sum, parts, route, row), True
    scales = torch.empty(EXPERTS)
    yield "moe_scale", partial(moe_scale, parts, route, scales, parts), False
    for qtype, rows in (("Q4_K", 1), ("MXFP4", 1), ("IQ4_XS", 1), ("Q8_0", 1), ("Q4_K", 512)):
        kind = QUANT_TYPES[qtype]
        weight = torch.empty(EXPERTS, 1, kind.row_bytes(WIDTH), dtype=torch.uint8)
        weight = weight.expand(-1, 512, -1)
        x, out = torch.empty(rows, 1, WIDTH, dtype=dtype), torch.empty(rows, TOP_K, 512)
        facts = {"qtype": qtype, "experts": EXPERTS, "top_k": TOP_K, "n": 512, "k": WIDTH}
        call = partial(moe_matmul, x, torch.zeros(rows, 2, TOP_K), weight, out.to(dtype), **facts)
        yield f"moe_matmul {qtype} {rows} rows", call, rows == 1 and qtype in ("Q4_K", "MXFP4")
    gate = torch.empty(ROWS, 1, dtype=dtype)
    yield "sigmoid_gate", partial(sigmoid_gate, row, row, row), True
    yield "sigmoid_gate one", partial(sigmoid_gate, row, gate, row), True
    yield "affine", partial(affine, row, torch.empty(1), torch.empty(WIDTH), row), False
    heads = torch.empty(ROWS, 48, 128, dtype=dtype)
    norm = torch.empty(128)
    yield "gated_rms_norm", partial(gated_rms_norm, heads, heads, norm, heads, eps=1e-6), True
    batch, places = step(0), torch.zeros(64, dtype=torch.int32)
    buffer = torch.empty(64, 4 * WIDTH, dtype=dtype)
    yield "put_rows", partial(put_rows, row, batch, places, buffer, column=WIDTH), False
    yield "take_rows", partial(take_rows, batch, places, buffer, buffer[:ROWS]), False
