"""Ops of mixtures of experts: routes, the experts' products, and their sums."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.program import Work
from luce_core.weights.quant_types import QUANT_TYPES, QuantTensor
from luce_kernels_cpu.native_op import Arg, Given, NativeOp
from luce_kernels_cpu.native_weight import NativeWeight, pack_weight
from luce_kernels_cpu.provider import address
from luce_kernels_cpu.structs import Op, Quantized, Rows
from luce_kernels_cpu.weight_types import accepts_weight, rounded_for

MOST_CHOSEN = 64  # LK_MOST_CANDIDATES
MOST_EXPERTS = 1024  # LK_MOST_EXPERTS
_SCORINGS = ("softmax", "sqrt_softplus")  # LK_SOFTMAX, LK_SQRT_SOFTPLUS
LANES = 16  # rows of a weight's tile


class MoeRouteArgs(c.Structure):
    _fields_ = [
        ("logits", Rows),
        ("out", Rows),
        ("bias", c.c_void_p),
        ("top_k", c.c_int32),
        ("scoring", c.c_int32),
        ("scale", c.c_float),
    ]


class MoeMatmulArgs(c.Structure):
    _fields_ = [
        ("weight", c.c_void_p),
        ("x", Rows),
        ("xq", Quantized),
        ("route", Rows),
        ("out", Rows),
        ("experts", c.c_int32),
        ("top_k", c.c_int32),
        ("inputs", c.c_int32),
        ("n", c.c_int32),
        ("group_rows", c.c_int32),
    ]


class MoeSumArgs(c.Structure):
    _fields_ = [("x", Rows), ("route", Rows), ("out", Rows), ("top_k", c.c_int32)]


class MoeScaleArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("route", Rows),
        ("out", Rows),
        ("scale", c.c_void_p),
        ("experts", c.c_int32),
        ("top_k", c.c_int32),
    ]


def pack_experts(weight: QuantTensor | Tensor, device: torch.device) -> NativeWeight:
    """Experts [E, N, K] as one matrix: each begins with a tile of its own."""
    if isinstance(weight, Tensor):
        values = weight.to(torch.float32).contiguous()
        blocks, qtype, name = values.view(torch.uint8), QUANT_TYPES["F32"], "experts"
    else:
        blocks, qtype, name = weight.blocks, weight.qtype, weight.name
    experts, n, k = weight.shape
    missing = -n % LANES
    rows = blocks.view(experts, n, -1)
    if missing:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, missing))
    flat = rows.reshape(experts * (n + missing), -1)
    return pack_weight(QuantTensor(name, qtype, (flat.shape[0], k), flat), device)


def as_experts_read(facts: Mapping[str, Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The activations x [R, 1 or top_k, K] as products with a weight of this type take them."""
    x, route = args
    return (rounded_for(facts["qtype"], x), route)


def accepts_route(facts: Mapping[str, Any]) -> bool:
    fits = facts["scoring"] == "softmax" or facts["experts"] <= MOST_EXPERTS
    return bool(fits and facts["top_k"] <= MOST_CHOSEN)


def _moe_route(given: Given) -> c.Structure:
    facts = given.facts
    return MoeRouteArgs(
        given.rows["logits"],
        given.rows["out"],
        address(given.tensors["bias"]),
        facts["top_k"],
        _SCORINGS.index(facts["scoring"]),
        facts["scale"],
    )


def _moe_matmul(given: Given) -> c.Structure:
    rows, facts = given.rows, given.facts
    return MoeMatmulArgs(
        given.tensors["weight"].handle,
        rows["x"],
        given.quantized_in,
        rows["route"],
        rows["out"],
        facts["experts"],
        facts["top_k"],
        rows["x"].width // facts["k"],
        facts["n"],
        facts["group_rows"],
    )


def _moe_work(constants: Mapping[str, Any], rows: int) -> Work:
    """Were all rows' experts different ones, as long as there are any."""
    weight, pairs = constants["weight"], rows * constants["top_k"]
    operations = 2 * pairs * constants["n"] * constants["k"]
    share = min(pairs, constants["experts"]) / constants["experts"]
    return Work(
        int(weight.nbytes * share),
        int8_operations=operations if weight.takes_int8 else 0,
        float_operations=0 if weight.takes_int8 else operations,
    )


def _chosen(given: Given) -> int:
    """Experts of a row, from its route."""
    return int(given.rows["route"].width) // 2


def _moe_sum(given: Given) -> c.Structure:
    return MoeSumArgs(given.rows["x"], given.rows["route"], given.rows["out"], _chosen(given))


def _moe_scale(given: Given) -> c.Structure:
    rows, scale = given.rows, given.tensors["scale"]
    return MoeScaleArgs(
        rows["x"], rows["route"], rows["out"], address(scale), scale.shape[0], _chosen(given)
    )


MOE_OPS = (
    NativeOp(
        name="moe_route",
        code=Op.MOE_ROUTE,
        args={"logits": Arg.ANY, "bias": Arg.WEIGHT, "out": Arg.ANY},
        fill=_moe_route,
        offer={"accepts": accepts_route},
    ),
    NativeOp(
        name="moe_matmul",
        code=Op.MOE_MATMUL,
        args={"x": Arg.ANY, "route": Arg.ANY, "weight": Arg.WEIGHT, "out": Arg.ANY},
        fill=_moe_matmul,
        int8_weight="weight",
        work=_moe_work,
        offer={
            "prepare": pack_experts,
            "accepts": accepts_weight,
            "as_read": as_experts_read,
        },
    ),
    NativeOp(
        name="moe_sum",
        code=Op.MOE_SUM,
        args={"x": Arg.ANY, "route": Arg.ANY, "out": Arg.ANY},
        fill=_moe_sum,
    ),
    NativeOp(
        name="moe_scale",
        code=Op.MOE_SCALE,
        args={"x": Arg.ANY, "route": Arg.ANY, "scale": Arg.WEIGHT, "out": Arg.ANY},
        fill=_moe_scale,
    ),
)
