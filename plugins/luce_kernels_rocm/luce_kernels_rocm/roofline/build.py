"""The steps of the models, op by op."""

from __future__ import annotations

from collections.abc import Iterator

from luce_core.ops.device_tools import OpCost, Roofline, StepCost
from luce_core.ops.program import Work
from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.roofline import delta_rule, least, moved, qwen_ops
from luce_kernels_rocm.roofline.devices import device_arch, device_limits
from luce_kernels_rocm.roofline.models import models_named
from luce_kernels_rocm.roofline.moved import Moved
from luce_kernels_rocm.roofline.shapes import STEPS, DeltaShape, ModelShape, Step


def roofline(devices: tuple[str, ...], model: str | None) -> Roofline:
    """ConfigError for an unknown device or model."""
    limits = tuple(device_limits(name) for name in devices)
    arch = device_arch(limits[0].name)
    steps = tuple(
        StepCost(model=shape.name, step=step.name, ops=tuple(costs_of(shape, step, arch)))
        for shape in models_named(model)
        for step in STEPS
    )
    return Roofline(devices=limits, steps=steps)


def costs_of(model: ModelShape, step: Step, arch: Arch) -> Iterator[OpCost]:
    """Each op of a step, in the order of a forward pass."""
    rows, logits = step.all_rows, step.segments
    width, layout, heads = model.width, model.layout, model.heads
    head_dim, kv_heads = layout.head_dim, layout.kv_heads

    embedded = least.embedding(model.embedding, rows, width)
    # Its programs read nothing twice but the token of a row.
    yield _entry("embedding_rows", f"{width}", 1, embedded, Moved(0, embedded.read_bytes))
    yield _entry(
        "rms_norm", f"{width}", model.norms, least.norm(rows, 1, width), moved.norm(rows, 1, width)
    )
    for each in model.products:
        count = logits if each.is_head else rows
        out = least.FLOAT if each.is_head else least.VALUE
        facts = (each.qtype, each.n, each.k, count, out)
        what = f"{each.name}: {each.qtype} {each.n} x {each.k}"
        yield _entry(
            "quant_matmul", what, each.count, least.product(*facts), moved.product(arch, *facts)
        )
    for name, number in (("q", heads), ("k", kv_heads)):
        sizes = (rows, number, head_dim)
        what = f"{name}: {number} x {head_dim}"
        if model.head_norms:
            normed = least.norm(*sizes), moved.norm(*sizes)
            yield _entry("rms_norm", what, model.attentions, *normed)
        turned = least.rope(*sizes, model.rotary_dim), moved.rope(*sizes, model.rotary_dim)
        yield _entry("rope", what, model.attentions, *turned)
    what = f"{kv_heads} x {head_dim}, {layout.k_type}"
    written = least.kv_write(layout, rows), moved.kv_write(layout, rows)
    yield _entry("kv_write", what, model.attentions, *written)
    attended = least.attention(layout, heads, step), moved.attention(arch, layout, heads, step)
    yield _entry("paged_attention", f"{heads} over {what}", model.attentions, *attended)
    if model.gated_heads:
        opened = qwen_ops.sigmoid_gate(rows, heads * head_dim)
        yield _entry("sigmoid_gate", f"{heads * head_dim}", model.attentions, *opened)
    if model.delta is not None:
        yield from _delta_layers(model.delta, step)
    gated = least.elementwise(rows, model.ff, operations=5), moved.elementwise(rows, model.ff)
    yield _entry("swiglu", f"{model.ff}", model.swiglus, *gated)
    added = least.elementwise(rows, width, operations=1), moved.elementwise(rows, width)
    yield _entry("add", f"{width}", model.adds, *added)
    gathered = least.gather(logits, width), moved.gather(logits, width)
    yield _entry("gather_rows", f"{width}", 1, *gathered)
    best = least.greedy(logits, model.vocab), moved.greedy(logits, model.vocab)
    yield _entry("greedy_token", f"{model.vocab}", 1, *best)


def _delta_layers(delta: DeltaShape, step: Step) -> Iterator[OpCost]:
    what = f"{delta.channels}, {delta.taps} taps"
    yield _entry("causal_conv1d", what, delta.count, *qwen_ops.causal_conv1d(delta, step))
    what = f"{delta.value_heads} x {delta.key_dim} x {delta.value_dim}"
    ruled = delta_rule.least(delta, step), delta_rule.moved(delta, step)
    yield _entry("gated_delta", what, delta.count, *ruled)
    normed = qwen_ops.gated_rms_norm(step.all_rows, delta.value_heads, delta.value_dim)
    what = f"{delta.value_heads} x {delta.value_dim}"
    yield _entry("gated_rms_norm", what, delta.count, *normed)


def _entry(op: str, what: str, calls: int, work: Work, found: Moved) -> OpCost:
    return OpCost(op=op, what=what, calls=calls, least=work, moved_bytes=found.nbytes)
