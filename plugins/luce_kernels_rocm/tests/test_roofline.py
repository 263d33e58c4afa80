"""What ops must move, against the sizes of real tensors, and what our programs ask for, against the
grids of real calls."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import torch
from luce_kernels_rocm import luce_register_device_tools
from luce_kernels_rocm.aot.cases import blank_weight
from luce_kernels_rocm.arch import INTERPRETER, arch_named
from luce_kernels_rocm.offers import offers
from luce_kernels_rocm.ops.add import add
from luce_kernels_rocm.ops.gated_delta import gated_delta
from luce_kernels_rocm.ops.gather_rows import gather_rows
from luce_kernels_rocm.ops.greedy_token import greedy_token
from luce_kernels_rocm.ops.kept_tokens import kept_tokens
from luce_kernels_rocm.ops.kv_write import kv_write
from luce_kernels_rocm.ops.paged_attention import paged_attention
from luce_kernels_rocm.ops.quant_matmul import quant_matmul
from luce_kernels_rocm.ops.rms_norm import rms_norm
from luce_kernels_rocm.ops.rope import rope
from luce_kernels_rocm.roofline import delta_rule, least, moved, sampler_ops
from luce_kernels_rocm.roofline.build import roofline
from luce_kernels_rocm.roofline.shapes import DeltaShape, Step
from luce_kernels_rocm.testing import HALF, empty, nbytes

from luce_core.errors import ConfigError
from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.device_tools import tools_of
from luce_core.ops.kv_layout import KvLayout
from luce_core.roofline_table import roofline_json, roofline_tables

LAYOUT = KvLayout(kv_heads=2, head_dim=64, block_size=16)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 200])
def test_products_have_the_programs_that_are_counted(programs: list[int], rows: int) -> None:
    weight = blank_weight(1000, 512, "Q4_K")
    facts: dict[str, Any] = {"qtype": "Q4_K", "n": 1000, "k": 512}
    quant_matmul(empty(rows, 512), weight.blocks, None, empty(rows, 1000), **facts)
    assert sum(programs) == moved.product(INTERPRETER, "Q4_K", 1000, 512, rows).programs


@pytest.mark.parametrize(
    ("segments", "rows", "context", "prefill"),
    [(3, 1, 40, False), (2, 4, 1500, False), (1, 200, 0, True), (1, 70, 30, True)],
)
def test_attention_has_the_programs_that_are_counted(
    programs: list[int], segments: int, rows: int, context: int, prefill: bool
) -> None:
    case = CaseMaker("cpu", HALF).batch([Segment(context, rows, prefill)] * segments, LAYOUT)
    cache = LAYOUT.allocate(1)
    q = empty(segments * rows, 6, 64)
    facts = {**LAYOUT.facts, "heads": 6, "scale": 0.125}
    paged_attention(q, case.batch, cache.k, cache.v, empty(*q.shape), **facts)
    step = Step("", segments, rows, context, prefill)
    assert sum(programs) == moved.attention(INTERPRETER, LAYOUT, 6, step).programs


@pytest.mark.parametrize(
    ("segments", "rows", "context", "prefill"),
    [
        (3, 1, 40, False),
        (2, 5, 40, False),
        (1, 200, 0, True),
        (2, 70, 10, True),
        (2, 17, 4, True),
        (1, 9, 0, True),
    ],
)
def test_the_delta_rule_has_the_programs_that_are_counted(
    programs: list[int], segments: int, rows: int, context: int, prefill: bool
) -> None:
    shape = DeltaShape(count=1, key_heads=1, value_heads=2, key_dim=16, value_dim=40)
    case = CaseMaker("cpu", HALF).batch([Segment(context, rows, prefill)] * segments, LAYOUT)
    count, slots = segments * rows, segments + 1
    logs = (torch.empty(slots, 8, 1, 16), torch.empty(slots, 8, 2, 40), torch.empty(slots, 8, 2))
    caches = (torch.empty(slots, 2, 16, 40), *logs, torch.empty(2), torch.empty(2))
    args = (empty(count, 112), empty(count, 2), empty(count, 2), case.batch, *caches)
    sizes: dict[str, Any] = {"key_heads": 1, "value_heads": 2, "key_dim": 16, "value_dim": 40}
    gated_delta(*args, empty(count, 80), eps=1e-6, **sizes)
    step = Step("", segments, rows, context, prefill)
    assert sum(programs) == delta_rule.moved(shape, step).programs
    assert delta_rule.moved(shape, step).nbytes >= delta_rule.least(shape, step).read_bytes
    if step.is_verify:
        states, *of_rows = (each[:2] for each in caches[:4])
        logged = sum(nbytes(log[:, :rows]) for log in of_rows)
        values = nbytes(*args[:3], empty(count, 80))
        read = delta_rule.least(shape, step).read_bytes
        assert read == nbytes(states) + logged + values


def test_ops_of_rows_have_the_programs_that_are_counted(programs: list[int]) -> None:
    x, heads, rows = empty(5, 3000), empty(5, 9, 64), torch.zeros(5, dtype=torch.int32)
    cache = LAYOUT.allocate(1)
    kv = empty(5, 2, 64)
    turn: dict[str, Any] = {"attention_factor": 1.0, "rotary_dim": 64, "interleaved": False}
    add(x, x, empty(5, 3000))
    rms_norm(heads, torch.empty(64), empty(5, 9, 64), eps=1e-6)
    rope(heads, rows, empty(5, 9, 64), inv_freq=torch.empty(32), **turn)
    gather_rows(x, rows, empty(5, 3000))
    kv_write(kv, kv, rows, cache.k, cache.v, **LAYOUT.facts)
    assert programs == [
        moved.elementwise(5, 3000).programs,
        moved.norm(5, 9, 64).programs,
        moved.rope(5, 9, 64, 64).programs,
        moved.gather(5, 3000).programs,
        moved.kv_write(LAYOUT, 5).programs,
    ]
    programs.clear()
    greedy_token(torch.empty(5, 9000), rows)
    assert sum(programs) == moved.greedy(5, 9000).programs


def test_filters_of_a_sampler_have_the_programs_that_are_counted(programs: list[int]) -> None:
    logits, flags = torch.empty(5, 9000), torch.empty(5, 9000, dtype=torch.int8)
    counts = torch.empty(5, dtype=torch.int64)
    shares, ends = torch.empty(5, dtype=torch.float64), torch.empty(5)
    kept_tokens(logits, logits, counts, shares, ends, flags)
    cost = sampler_ops.kept_tokens(5, 9000)
    assert sum(programs) == cost.moved.programs
    assert cost.least.read_bytes == nbytes(logits, logits, counts, shares, ends, flags)


def test_a_product_must_read_its_weight_and_rows_once() -> None:
    weight, x, out = blank_weight(64, 256, "Q6_K"), empty(3, 256), empty(3, 64)
    work = least.product("Q6_K", 64, 256, 3)
    assert work.read_bytes == nbytes(weight.blocks, x, out)
    assert work.float_operations == 2 * 3 * 64 * 256


def test_attention_must_read_the_keys_and_values_that_its_rows_see() -> None:
    """Each row's keys counted one by one."""
    step = Step("", 2, 3, 10, False)
    work = least.attention(LAYOUT, 6, step)
    keys = {(segment, key) for segment in range(2) for row in range(3) for key in range(11 + row)}
    pairs = sum(11 + row for _ in range(2) for row in range(3))
    values = 2 * 6 * 6 * 64 * 2
    tables = 2 * 1 * 4
    assert work.read_bytes == len(keys) * 2 * 2 * 64 * 2 + values + tables
    assert work.float_operations == pairs * 6 * 64 * 4


def test_what_is_read_again_grows_with_the_tiles() -> None:
    """The weight once for each tile of rows, x once for each tile of columns."""
    arch = arch_named("gfx1201")
    one, four = (moved.product(arch, "Q8_0", 640, 512, rows) for rows in (64, 256))
    weight = 640 * 512 // 32 * 34
    assert one.nbytes == weight + 10 * 64 * 512 * 2 + 64 * 640 * 2
    assert four.nbytes == 4 * one.nbytes
    small = moved.product(arch, "Q8_0", 640, 512, 8)
    assert small.nbytes == weight + small.programs * 8 * 512 * 2 + 8 * 640 * 2


def test_every_op_with_a_kernel_is_in_a_step_of_some_model() -> None:
    shown = roofline(("h200",), None)
    ops = {cost.op for step in shown.steps for cost in step.ops}
    assert ops == {offer.op for offer in offers()}


def test_no_program_moves_less_than_the_least() -> None:
    shown = roofline(("r9700", "strix-halo", "h200"), None)
    for step in shown.steps:
        for cost in step.ops:
            assert cost.moved_bytes is not None
            assert cost.moved_bytes >= cost.least.read_bytes, (step.step, cost)


def test_a_decode_step_is_as_fast_as_memory_and_a_prompt_as_fast_as_products() -> None:
    shown = roofline(("r9700",), "qwen3.5-27b")
    decode, _, prompt = shown.steps
    rates = shown.devices[0].rates
    for step, name in ((decode, "read_bytes"), (prompt, "float_operations")):
        products = [cost for cost in step.ops if "gate, up" in cost.what]
        for cost in products:
            bound = getattr(cost.least, name) / getattr(rates, name)
            assert rates.seconds(cost.least) == bound
    # 16.8 GB at 640 GB/s, of which 0.3 GB are states of the delta rule.
    total = sum(cost.calls * rates.seconds(cost.least) for cost in decode.ops)
    assert total == pytest.approx(0.0263, rel=0.01)


def test_unknown_devices_and_models_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="r9700, strix-halo, h200"):
        roofline(("rtx",), None)
    with pytest.raises(ConfigError, match=r"qwen3\.5-27b, smollm2-135m"):
        roofline(("h200",), "gpt")


def test_the_plugin_offers_it_to_the_command_line() -> None:
    found: list[Any] = []
    luce_register_device_tools(found.append)
    (tools,) = found
    assert tools_of({tools.provider: tools}, None) is tools
    with pytest.raises(ConfigError, match="there is: luce_kernels_rocm"):
        tools_of({tools.provider: tools}, "other")
    with pytest.raises(ConfigError, match="pip install luce-kernels-rocm"):
        tools_of({}, None)
    shown = tools.roofline(("h200",), "smollm2-135m")
    written = orjson.loads(orjson.dumps(roofline_json(shown)))
    assert [step["step"] for step in written["steps"]] == [step.step for step in shown.steps]
    assert set(written["steps"][0]["ops"][0]["limits_us"]) == {"h200"}
    assert len(roofline_tables(shown).renderables) == 1 + len(shown.steps)
