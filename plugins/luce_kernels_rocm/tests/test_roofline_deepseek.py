"""What the ops of experts and of DeepSeek V4 must move, against the sizes of real tensors, and what
our programs ask for, against the grids of real calls."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from luce_kernels_rocm.arch import INTERPRETER
from luce_kernels_rocm.ops.compress_kv import compress_kv
from luce_kernels_rocm.ops.group_route import group_route
from luce_kernels_rocm.ops.hyper_begin import hyper_begin
from luce_kernels_rocm.ops.hyper_merge import hyper_merge
from luce_kernels_rocm.ops.hyper_mix import hyper_mix
from luce_kernels_rocm.ops.hyper_spread import hyper_spread
from luce_kernels_rocm.ops.index_topk import index_topk
from luce_kernels_rocm.ops.moe_matmul import moe_matmul
from luce_kernels_rocm.ops.moe_route import moe_route
from luce_kernels_rocm.ops.moe_route_by_token import moe_route_by_token
from luce_kernels_rocm.ops.moe_sum import moe_sum
from luce_kernels_rocm.ops.tail_rope import tail_rope
from luce_kernels_rocm.ops.window_attention import window_attention
from luce_kernels_rocm.ops.window_write import window_write
from luce_kernels_rocm.roofline import expert_ops, latent_ops, least, moved, stream_ops
from luce_kernels_rocm.roofline.build import roofline
from luce_kernels_rocm.roofline.models import MODELS
from luce_kernels_rocm.roofline.moved import Cost
from luce_kernels_rocm.roofline.shapes import Compression, ExpertProduct, Step
from luce_kernels_rocm.testing import batch_of, check_cost, empty, nbytes

from luce_core.ops.kv_layout import KvLayout
from luce_core.weights.quant_types import QUANT_TYPES

LAYOUT = KvLayout(kv_heads=1, head_dim=32, block_size=128)
STEPS = [
    Step("", 3, 1, 4096, False),
    Step("", 2, 4, 4094, False),
    Step("", 1, 200, 0, True),
    Step("", 2, 70, 2101, True),
]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 9, 300])
def test_experts_have_the_programs_that_are_counted(
    programs: list[int], rows: int, own: bool
) -> None:
    product = ExpertProduct("", 1, "Q8_0", 1000, 512, 20, 3, own_inputs=own)
    blocks = torch.empty(20, 1000, QUANT_TYPES["Q8_0"].row_bytes(512), dtype=torch.uint8)
    x, route, out = empty(rows, 3 if own else 1, 512), torch.zeros(rows, 2, 3), empty(rows, 3, 1000)
    facts: dict[str, Any] = {"experts": 20, "top_k": 3, "n": 1000, "k": 512}
    moe_matmul(x, route, blocks, out, qtype="Q8_0", **facts)
    cost = expert_ops.moe_matmul(INTERPRETER, product, rows)
    check_cost(cost, programs)
    asked = blocks[: 3 if rows == 1 else 20]
    assert cost.least.read_bytes == nbytes(x, route[:, 0], asked, out)
    assert cost.least.float_operations == rows * 3 * 2 * 1000 * 512


def test_routes_and_sums_have_the_programs_that_are_counted(programs: list[int]) -> None:
    step = Step("", 5, 1, 40, False)
    logits, bias, route = torch.empty(5, 20), torch.empty(20), torch.empty(5, 2, 3)
    scale: dict[str, Any] = {"experts": 20, "top_k": 3, "scale": 1.5}
    moe_route(logits, bias, route, scoring="sqrt_softplus", **scale)
    cost = expert_ops.moe_route(5, 20, 3)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(logits, bias, route)
    batch, table = batch_of(step, LAYOUT), torch.empty(100, 3)
    moe_route_by_token(logits, batch, table, route, **scale)
    cost = expert_ops.moe_route_by_token(5, 3)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(batch.token_ids, table[:5], logits[:, :3], route)
    x, out = empty(5, 3, 3000), empty(5, 3000)
    moe_sum(x, route, out)
    cost = expert_ops.moe_sum(5, 3, 3000)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(x, route[:, 1], out)
    group_route(batch, torch.empty(5, 2, 8), groups=8)
    check_cost(expert_ops.group_route(5, 8), programs)


def test_streams_have_the_programs_that_are_counted(programs: list[int]) -> None:
    rows, part = torch.empty(5, 4, 3000), empty(5, 3000)
    hyper_begin(part, rows, streams=4)
    cost = stream_ops.hyper_begin(5, 4, 3000)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(part, rows)
    for head, mixes, scales in ((False, 24, 3), (True, 4, 1)):
        fn, base, scale = torch.empty(mixes, 12000), torch.empty(mixes), torch.empty(scales)
        mix = torch.empty(5, mixes)
        facts: dict[str, Any] = {"eps": 1e-6, "hc_eps": 1e-6, "iterations": 20}
        hyper_mix(rows, fn, base, scale, mix, streams=4, head=head, **facts)
        cost = stream_ops.hyper_mix(5, 4, 3000, head=head)
        check_cost(cost, programs)
        assert cost.least.read_bytes == nbytes(rows, fn, base, scale, mix)
    mix = torch.empty(5, 24)
    hyper_merge(rows, mix, part, streams=4)
    cost = stream_ops.hyper_merge(5, 4, 3000)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(rows, mix[:, :4], part)
    hyper_spread(rows, mix, part, rows, streams=4)
    cost = stream_ops.hyper_spread(5, 4, 3000)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(rows, rows, mix[:, 4:], part)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("ratio", "top_k"), [(0, 0), (128, 0), (4, 512)])
def test_attention_over_a_window_has_the_programs_that_are_counted(
    programs: list[int], step: Step, ratio: int, top_k: int
) -> None:
    """Keys of each row counted one by one."""
    shape, rows = MODELS["deepseek-v4-flash"].latent, step.all_rows
    assert shape is not None
    q, ring, sinks = empty(rows, 64, 512), empty(4, 700, 512), torch.empty(64)
    facts: dict[str, Any] = {"heads": 64, "head_dim": 512, "window": 128, "cache_type": "f16"}
    picks = torch.empty(rows, top_k) if top_k else None
    facts |= {"ratio": ratio, "scale": 1.0, "picks": picks}
    cache = empty(9, 128 // (ratio or 128), 512)
    window_attention(q, batch_of(step, LAYOUT), ring, cache, sinks, empty(rows, 64, 512), **facts)
    cost = latent_ops.window_attention(shape, ratio, top_k, step)
    check_cost(cost, programs)
    tokens = range(step.context + step.rows)
    pairs = 0
    for position in tokens[step.context :]:
        pairs += sum(position - 128 < token <= position for token in tokens)
        seen = tokens[: position + 1]
        complete = sum(token % ratio == ratio - 1 for token in seen) if ratio else 0
        pairs += min(complete, top_k) if top_k else complete
    assert cost.least.float_operations == step.segments * pairs * 64 * 512 * 4


@pytest.mark.parametrize("step", STEPS)
def test_the_indexer_has_the_programs_that_are_counted(programs: list[int], step: Step) -> None:
    rows = step.all_rows
    q, weights, cache = empty(rows, 64, 128), torch.empty(rows, 64), empty(9, 32, 128)
    facts: dict[str, Any] = {"heads": 64, "head_dim": 128, "ratio": 4, "top_k": 512}
    out = torch.empty(rows, 512)
    index_topk(q, weights, batch_of(step, LAYOUT), cache, out, cache_type="f16", **facts)
    cost = latent_ops.index_topk(64, 128, 4, 512, step)
    check_cost(cost, programs)
    if step.rows == 1:  # 1024 entries of each segment
        positions = nbytes(torch.empty(rows, dtype=torch.int32))
        seen = rows * 1024 * nbytes(cache[0, 0])
        assert cost.least.read_bytes == nbytes(q, weights, out) + seen + positions


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("ratio", "series"), [(4, 2), (128, 1)])
def test_compressors_have_the_programs_that_are_counted(
    programs: list[int], step: Step, ratio: int, series: int
) -> None:
    rows, width = step.all_rows, series * 32
    values, pool, ape = empty(rows, width), torch.empty(4, series, 3, 32), torch.empty(ratio, width)
    cache, norm = empty(9, 128 // ratio, 32), torch.empty(32)
    facts: dict[str, Any] = {"ratio": ratio, "head_dim": 32, "overlap": series == 2, "eps": 1e-6}
    facts |= {"cache_type": "f16", "inv_freq": torch.empty(8), "attention_factor": 1.0}
    compress_kv(
        values, values, batch_of(step, LAYOUT), pool, cache, ape, norm, rotary_dim=16, **facts
    )
    cost = latent_ops.compress_kv(Compression("", 1, ratio, series, 32), 16, step)
    check_cost(cost, programs)
    if step.rows == 1:  # the first of a window: the pool behind the one before, if they overlap
        opened = pool[0, :1] if series == 2 else pool[0, :0]
        pools = step.segments * nbytes(opened, pool[0])
        assert cost.least.read_bytes == nbytes(values, values, ape[:1]) + pools
    if step.context == 0:
        entries = nbytes(cache[0, 0]) * (200 // ratio)
        used = nbytes(values, values, pool[0], norm, torch.empty(8)) + entries
        assert cost.least.read_bytes == used + nbytes(ape)


def test_rows_of_rings_have_the_programs_that_are_counted(programs: list[int]) -> None:
    step, kv = Step("", 5, 1, 40, False), empty(5, 1500)
    window_write(kv, batch_of(step, LAYOUT), empty(6, 128, 1500))
    cost = latent_ops.window_write(1500, 5)
    check_cost(cost, programs)
    assert cost.least.read_bytes == 2 * nbytes(kv) + nbytes(torch.empty(5, dtype=torch.int32))
    x = empty(5, 9, 64)
    turn: dict[str, Any] = {"attention_factor": 1.0, "head_dim": 64, "rotary_dim": 32}
    tail_rope(x, batch_of(step, LAYOUT), empty(5, 9, 64), inv_freq=torch.empty(16), **turn)
    check_cost(Cost(least.rope(5, 9, 64, 32), moved.rope(5, 9, 64, 32)), programs)


def test_every_weight_of_the_model_is_read_by_a_prompt() -> None:
    """284 billion values: all experts are asked, and each matrix read once."""
    shape = MODELS["deepseek-v4-flash"]
    assert shape.experts is not None
    assert shape.latent is not None
    products = [(each.count, each.n, each.k) for each in shape.products]
    mixed = (*shape.experts.products, shape.latent.group_product)
    products += [(each.count * each.experts, each.n, each.k) for each in mixed]
    values = sum(prod(sizes) for sizes in products) + shape.vocab * shape.width
    assert values == pytest.approx(284e9, rel=0.01)
    (*_, prompt) = roofline(("h200",), "deepseek-v4-flash").steps
    read = [cost for cost in prompt.ops if cost.op == "moe_matmul"]
    assert sum(cost.calls * cost.least.read_bytes for cost in read) > 43 * 256 * 3 * 2048 * 4096 / 2
