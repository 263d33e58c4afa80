"""What ops of models' plugins must move, against the sizes of real tensors, and what our programs
ask for, against the grids of real calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from luce_kernels_rocm.aot.cases import blank_weight
from luce_kernels_rocm.ops.affine import affine
from luce_kernels_rocm.ops.candidate_select import candidate_select
from luce_kernels_rocm.ops.causal_conv1d import causal_conv1d
from luce_kernels_rocm.ops.conv_replay import conv_replay
from luce_kernels_rocm.ops.draft_attention import draft_attention
from luce_kernels_rocm.ops.draft_draw import draft_draw
from luce_kernels_rocm.ops.dynamic_conv import dynamic_conv
from luce_kernels_rocm.ops.gated_delta_replay import gated_delta_replay
from luce_kernels_rocm.ops.gated_rms_norm import gated_rms_norm
from luce_kernels_rocm.ops.moe_scale import moe_scale
from luce_kernels_rocm.ops.put_rows import put_rows
from luce_kernels_rocm.ops.ring_write import ring_write
from luce_kernels_rocm.ops.sigmoid_gate import sigmoid_gate
from luce_kernels_rocm.roofline import draft_ops, least, moved, qwen_ops, replay_ops, scale_ops
from luce_kernels_rocm.roofline.models import MODELS
from luce_kernels_rocm.roofline.moved import Cost
from luce_kernels_rocm.roofline.shapes import DeltaShape, DraftShape, Step
from luce_kernels_rocm.testing import batch_of, check_cost, empty, nbytes

from luce_core.ops.kv_layout import KvLayout

LAYOUT = KvLayout(kv_heads=2, head_dim=64, block_size=16)


STEPS = [
    Step("", 3, 1, 40, False),
    Step("", 2, 5, 40, False),
    Step("", 1, 200, 0, True),
    Step("", 2, 70, 10, True),
    Step("", 2, 2, 4, True),
]


@pytest.mark.parametrize("step", STEPS)
def test_convolutions_have_the_programs_that_are_counted(programs: list[int], step: Step) -> None:
    shape = DeltaShape(count=1, key_heads=2, value_heads=5, key_dim=64, value_dim=64, taps=3)
    width, slots = shape.channels, step.segments
    x, state, weight = (
        empty(step.all_rows, width),
        torch.empty(slots, 2, width),
        torch.empty(width, 3),
    )
    log, out = torch.empty(slots, 8, width), empty(step.all_rows, width)
    facts: dict[str, Any] = {"channels": width, "kernel": 3}
    causal_conv1d(x, batch_of(step, LAYOUT), state, log, weight, out, **facts)
    cost = qwen_ops.causal_conv1d(shape, step)
    check_cost(cost, programs)
    kept = log[:, : step.rows] if step.is_verify else state
    assert cost.least.read_bytes == nbytes(x, state, kept, weight, out)


def test_replays_have_the_programs_that_are_counted(programs: list[int]) -> None:
    shape = DeltaShape(count=1, key_heads=2, value_heads=5, key_dim=64, value_dim=40, taps=3)
    step, width = Step("", 2, 5, 40, False), shape.channels
    batch, accepted = batch_of(step, LAYOUT), torch.empty(3, dtype=torch.int32)
    state, log = torch.empty(3, 2, width), torch.empty(3, 8, width)
    conv_replay(batch, accepted, log, state, channels=width, kernel=3)
    cost = replay_ops.conv_replay(shape, step)
    check_cost(cost, programs)
    # All of what is kept comes from the log.
    assert cost.least.read_bytes == nbytes(state[:2], log[:2, :2], accepted[:2])
    state = torch.empty(3, 5, 64, 40)
    logs = (torch.empty(3, 8, 2, 64), torch.empty(3, 8, 5, 40), torch.empty(3, 8, 5))
    sizes: dict[str, Any] = {"key_heads": 2, "value_heads": 5, "key_dim": 64, "value_dim": 40}
    gated_delta_replay(batch, accepted, *logs, state, **sizes)
    cost = replay_ops.gated_delta_replay(shape, step)
    check_cost(cost, programs)
    logged = nbytes(*(each[:2, :5] for each in logs))
    assert cost.least.read_bytes == 2 * nbytes(state[:2]) + logged + nbytes(accepted[:2])
    assert cost.least.float_operations == 2 * 5 * 3 * state[0].numel()


def test_scales_have_the_programs_that_are_counted(programs: list[int]) -> None:
    x, scale, out = empty(5, 3000), torch.empty(1), empty(5, 3000)
    affine(x, scale, None, out)
    cost = scale_ops.affine(5, 3000)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(x, scale, out)
    for experts, asked in ((20, 15), (9, 9)):
        scales, route = torch.empty(experts), torch.zeros(5, 2, 3)
        parts = empty(5, 3, 3000)
        moe_scale(parts, route, scales, parts)
        cost = scale_ops.moe_scale(5, experts, 3, 3000)
        check_cost(cost, programs)
        assert cost.least.read_bytes == nbytes(parts, parts, route[:, 0], scales[:asked])


def test_rows_for_a_draft_have_the_programs_that_are_counted(programs: list[int]) -> None:
    step, x, buffer = Step("", 3, 8, 40, False), empty(24, 3000), empty(50, 9000)
    places = torch.zeros(64, dtype=torch.int32)
    put_rows(x, batch_of(step, LAYOUT), places, buffer, column=3000)
    cost = Cost(least.gather(24, 3000), moved.gather(24, 3000))
    check_cost(cost, programs)
    assert cost.least.read_bytes == 2 * nbytes(x) + nbytes(places[:24])


def test_gates_have_the_programs_that_are_counted(programs: list[int]) -> None:
    x, z, weight, out = empty(5, 9, 64), empty(5, 9, 64), torch.empty(64), empty(5, 9, 64)
    gated_rms_norm(x, z, weight, out, eps=1e-6)
    cost = qwen_ops.gated_rms_norm(5, 9, 64)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(x, z, weight, out)
    wide = [empty(5, 3000) for _ in range(3)]
    sigmoid_gate(*wide)
    cost = qwen_ops.sigmoid_gate(5, 3000)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(*wide)
    sigmoid_gate(wide[0], empty(5, 1), wide[1])
    cost = qwen_ops.shared_gate(5, 3000)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(*wide[:2], empty(5, 1))


DRAFT = DraftShape(
    features=64, window=32, convolutions=1, taps=2, group=16, top_k=16, rank=256, codebook="Q4_K"
)


@pytest.mark.parametrize(("context", "reach"), [(20, 20), (200, 31)])
def test_draft_attention_has_the_programs_that_are_counted(
    programs: list[int], context: int, reach: int
) -> None:
    """Pairs of row and key counted one by one."""
    model, step = MODELS["dflash"], Step("", 3, 8, context, False, logits=7)
    kv, ring = empty(24, 8, 128), empty(4, 64, 8, 128)
    q, out = empty(24, 32, 128), empty(24, 32, 128)
    facts: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "scale": 1.0}
    batch = batch_of(step, LAYOUT)
    draft_attention(q, kv, kv, batch, ring, ring, out, window=32, causal=False, **facts)
    cost = draft_ops.draft_attention(model, 32, step)
    check_cost(cost, programs)
    seen = 2 * 3 * reach * nbytes(ring[0, 0])
    positions = nbytes(torch.empty(24, dtype=torch.int32))
    assert cost.least.read_bytes == nbytes(q, out, kv, kv) + seen + positions
    keys = range(context + 8)
    pairs = sum(abs(context + row - key) < 32 for row in range(8) for key in keys)
    assert cost.least.float_operations == 3 * pairs * 32 * 128 * 4


def test_dynamic_convolutions_have_the_programs_that_are_counted(programs: list[int]) -> None:
    step = Step("", 3, 8, 40, False)
    x, delta, base, out = empty(24, 3072), empty(24, 768), torch.empty(2, 2, 3072), empty(24, 3072)
    dynamic_conv(x, delta, batch_of(step, LAYOUT), base, out, side=1, taps=2, group=16)
    cost = draft_ops.dynamic_conv(3072, DRAFT, step)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(x, delta[:, :384], base[0], out)


def test_what_chooses_drafts_has_the_programs_that_are_counted(programs: list[int]) -> None:
    step, vocab = Step("", 3, 8, 40, False, logits=7), 9000
    logits, g, out = torch.empty(21, vocab), empty(21, 256), torch.empty(21, dtype=torch.int32)
    books, slots = blank_weight(vocab, 256, "Q4_K").blocks, torch.empty(4)
    keys, batch = torch.empty(4, 8, dtype=torch.int64), batch_of(step, LAYOUT)
    kinds = {"predecessor_type": "Q4_K", "successor_type": "Q4_K"}
    facts: dict[str, Any] = {"top_k": 16, "rank": 256, **kinds}
    candidate_select(logits, g, batch, slots, keys, books, books, out, **facts)
    cost = draft_ops.candidate_select(vocab, DRAFT, step)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(logits, g, out) + 21 * 17 * nbytes(books[0])
    draft_draw(logits, batch, slots, keys, out)
    cost = draft_ops.draft_draw(21, vocab)
    check_cost(cost, programs)
    assert cost.least.read_bytes == nbytes(logits, out)


def test_rings_are_written_by_the_programs_that_are_counted(programs: list[int]) -> None:
    step, kv, ring = Step("", 3, 8, 40, False), empty(24, 9, 128), empty(4, 64, 9, 128)
    rows = torch.zeros(24, dtype=torch.int32)
    ring_write(kv, kv, batch_of(step, LAYOUT), rows, ring, ring, kv_heads=9, head_dim=128)
    cost = draft_ops.ring_write(9, 128, 24)
    check_cost(cost, programs)
    assert cost.least.read_bytes == 4 * nbytes(kv) + nbytes(rows)
