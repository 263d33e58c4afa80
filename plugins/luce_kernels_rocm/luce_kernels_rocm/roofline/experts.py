"""The layers of a mixture of experts, op by op."""

from __future__ import annotations

from collections.abc import Iterator

from luce_core.ops.device_tools import OpCost
from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.roofline import expert_ops, least, moved, qwen_ops, scale_ops
from luce_kernels_rocm.roofline.entry import entry
from luce_kernels_rocm.roofline.shapes import ExpertProduct, ExpertsShape, Step


def expert_layers(shape: ExpertsShape, width: int, step: Step, arch: Arch) -> Iterator[OpCost]:
    """Of the routed experts; a shared one is a feed-forward like others."""
    rows, top_k = step.all_rows, shape.top_k
    what = f"{top_k} of {shape.experts}"
    if shape.by_token:
        by_token = expert_ops.moe_route_by_token(rows, top_k)
        yield entry("moe_route_by_token", what, shape.by_token, *by_token)
    routed = expert_ops.moe_route(rows, shape.experts, top_k)
    yield entry("moe_route", what, shape.count - shape.by_token, *routed)
    for each in shape.products:
        yield expert_product(each, rows, arch)
        if each.scaled:
            scaled = scale_ops.moe_scale(rows, shape.experts, top_k, each.n)
            yield entry("moe_scale", f"{each.name}: {top_k} x {each.n}", each.count, *scaled)
    inner = top_k * shape.inner
    gated = least.elementwise(rows, inner, operations=5), moved.elementwise(rows, inner)
    yield entry("swiglu", f"experts: {inner}", shape.count, *gated)
    summed = expert_ops.moe_sum(rows, top_k, width)
    yield entry("moe_sum", f"{top_k} x {width}", shape.count, *summed)
    if shape.shared_gate:
        gated = qwen_ops.shared_gate(rows, width)
        yield entry("sigmoid_gate", f"shared: {width}", shape.count, *gated)


def expert_product(product: ExpertProduct, rows: int, arch: Arch) -> OpCost:
    sizes = f"{product.qtype} {product.n} x {product.k}"
    what = f"{product.name}: {product.top_k} of {product.experts}, {sizes}"
    cost = expert_ops.moe_matmul(arch, product, rows)
    return entry("moe_matmul", what, product.count, *cost)
