"""The steps of the models, op by op."""

from __future__ import annotations

from collections.abc import Iterator

from luce_core.ops.device_tools import OpCost, Roofline, StepCost
from luce_core.ops.program import Work
from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.roofline import delta_rule, least, moved
from luce_kernels_rocm.roofline.devices import device_arch, device_limits
from luce_kernels_rocm.roofline.models import STEPS, ModelShape, Step, models_named
from luce_kernels_rocm.roofline.moved import Moved


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

    def cost(op: str, what: str, calls: int, work: Work, found: Moved | None) -> OpCost:
        return OpCost(op=op, what=what, calls=calls, least=work, moved_bytes=found and found.nbytes)

    embedded = least.embedding(model.embedding, rows, width)
    # Its programs read nothing twice but the token of a row.
    yield cost("embedding_rows", f"{width}", 1, embedded, Moved(0, embedded.read_bytes))
    yield cost(
        "rms_norm", f"{width}", model.norms, least.norm(rows, 1, width), moved.norm(rows, 1, width)
    )
    for each in model.products:
        count = logits if each.is_head else rows
        out = least.FLOAT if each.is_head else least.VALUE
        facts = (each.qtype, each.n, each.k, count, out)
        what = f"{each.name}: {each.qtype} {each.n} x {each.k}"
        yield cost(
            "quant_matmul", what, each.count, least.product(*facts), moved.product(arch, *facts)
        )
    for name, number in (("q", heads), ("k", kv_heads)):
        sizes = (rows, number, head_dim)
        what = f"{name}: {number} x {head_dim}"
        if model.head_norms:
            normed = least.norm(*sizes), moved.norm(*sizes)
            yield cost("rms_norm", what, model.attentions, *normed)
        turned = least.rope(*sizes, model.rotary_dim), moved.rope(*sizes, model.rotary_dim)
        yield cost("rope", what, model.attentions, *turned)
    what = f"{kv_heads} x {head_dim}, {layout.k_type}"
    written = least.kv_write(layout, rows), moved.kv_write(layout, rows)
    yield cost("kv_write", what, model.attentions, *written)
    attended = least.attention(layout, heads, step), moved.attention(arch, layout, heads, step)
    yield cost("paged_attention", f"{heads} over {what}", model.attentions, *attended)
    if model.delta is not None:
        delta = model.delta
        what = f"{delta.value_heads} x {delta.key_dim} x {delta.value_dim}"
        ruled = delta_rule.least(delta, step), delta_rule.moved(delta, step)
        yield cost("gated_delta", what, delta.count, *ruled)
    gated = least.elementwise(rows, model.ff, operations=5), moved.elementwise(rows, model.ff)
    yield cost("swiglu", f"{model.ff}", model.swiglus, *gated)
    added = least.elementwise(rows, width, operations=1), moved.elementwise(rows, width)
    yield cost("add", f"{width}", model.adds, *added)
    gathered = least.gather(logits, width), moved.gather(logits, width)
    yield cost("gather_rows", f"{width}", 1, *gathered)
    best = least.greedy(logits, model.vocab), moved.greedy(logits, model.vocab)
    yield cost("greedy_token", f"{model.vocab}", 1, *best)
