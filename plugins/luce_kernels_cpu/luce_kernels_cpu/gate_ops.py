"""Ops on rows alone: gates, a gated norm, rows side by side, products with a scale."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

from luce_kernels_cpu.native_op import Arg, Given, NativeOp
from luce_kernels_cpu.provider import address
from luce_kernels_cpu.structs import Op, Quantized, Rows


class GatedNormArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("z", Rows),
        ("weight", c.c_void_p),
        ("eps", c.c_float),
        ("group", c.c_int32),
        ("out", Rows),
        ("quantized", Quantized),
    ]


class SigmoidGateArgs(c.Structure):
    _fields_ = [("x", Rows), ("gate", Rows), ("out", Rows), ("quantized", Quantized)]


class AffineArgs(c.Structure):
    _fields_ = [("x", Rows), ("scale", c.c_void_p), ("bias", c.c_void_p), ("out", Rows)]


def _gated_norm(given: Given) -> c.Structure:
    weight, rows = given.tensors["weight"], given.rows
    return GatedNormArgs(
        rows["x"],
        rows["z"],
        address(weight),
        given.facts["eps"],
        weight.shape[0],
        rows["out"],
        given.quantized,
    )


def _sigmoid_gate(given: Given) -> c.Structure:
    rows = given.rows
    return SigmoidGateArgs(rows["x"], rows["gate"], rows["out"], given.quantized)


def _affine(given: Given) -> c.Structure:
    tensors = given.tensors
    return AffineArgs(
        given.rows["x"], address(tensors["scale"]), address(tensors["bias"]), given.rows["out"]
    )


def _one_head(constants: Mapping[str, Any], width: int) -> int:
    return int(constants["weight"].shape[0])


def _whole_row(constants: Mapping[str, Any], width: int) -> int:
    return width


GATE_OPS = (
    NativeOp(
        name="gated_rms_norm",
        code=Op.GATED_NORM,
        args={"x": Arg.ANY, "z": Arg.ANY, "weight": Arg.WEIGHT, "out": Arg.ANY},
        fill=_gated_norm,
        int8_group=_one_head,
    ),
    NativeOp(
        name="sigmoid_gate",
        code=Op.SIGMOID_GATE,
        args={"x": Arg.ANY, "gate": Arg.ANY, "out": Arg.ANY},
        fill=_sigmoid_gate,
        int8_group=_whole_row,
    ),
    NativeOp(
        name="affine",
        code=Op.AFFINE,
        args={"x": Arg.ANY, "scale": Arg.WEIGHT, "bias": Arg.WEIGHT, "out": Arg.ANY},
        fill=_affine,
    ),
)
