"""What runs a node: a callable that gets what the node reads by name, and its outputs in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from luce_core.ops.bound import BoundOp
from luce_kernels_rocm.graphs.graph import Kind, Node
from luce_kernels_rocm.offers import LateKernel

_QUANT_MATMUL = LateKernel("quant_matmul", "luce_kernels_rocm.ops.quant_matmul")
_NARROW_MATMUL = LateKernel("narrow_matmul", "luce_kernels_rocm.ops.quant_matmul")
_ADD_RMS_NORM = LateKernel("add_rms_norm", "luce_kernels_rocm.ops.fused")
_SWIGLU_MATMUL = LateKernel("swiglu_matmul", "luce_kernels_rocm.ops.fused")


def launch_of(node: Node) -> Callable[..., None]:
    match node.kind:
        case Kind.CALL:
            return partial(_call, node.ops["op"])
        case Kind.PRODUCT:
            return partial(_product, node.ops["product"], _norm(node))
        case Kind.GATE_UP:
            ops = node.ops
            return partial(_gate_up, ops["gate"], ops["up"], ops["swiglu"], _norm(node))
        case Kind.ADD_NORM:
            return partial(_add_norm, node.ops["norm"])


def _norm(node: Node) -> dict[str, Any]:
    """The norm in front of a product, as its launch takes it."""
    op = node.ops.get("norm")
    return {} if op is None else {"norm": op.weights[0], "eps": op.constants["eps"]}


def _call(op: BoundOp, *outs: Tensor, **reads: Any) -> None:
    op.run_into(tuple(reads.values()), outs[0] if outs else None)


def _product(
    op: BoundOp, norm: dict[str, Any], out: Tensor, *, x: Tensor, residual: Tensor | None = None
) -> None:
    run = _NARROW_MATMUL if norm else _QUANT_MATMUL
    run(x, *op.weights, out, **op.constants, residual=residual, **norm)


def _gate_up(
    gate: BoundOp, up: BoundOp, swiglu: BoundOp, norm: dict[str, Any], out: Tensor, *, x: Tensor
) -> None:
    weights = [(op.weights[0], op.constants["qtype"]) for op in (gate, up)]
    _SWIGLU_MATMUL(x, *weights, out, limit=swiglu.constants["limit"], **norm)


def _add_norm(norm: BoundOp, total: Tensor, out: Tensor, *, a: Tensor, b: Tensor) -> None:
    _ADD_RMS_NORM(a, b, norm.weights[0], total, out, eps=norm.constants["eps"])
