"""The steps of the models, op by op."""

from __future__ import annotations

from collections.abc import Iterator

from luce_core.ops.device_tools import OpCost, Roofline, StepCost
from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.roofline import (
    delta_rule,
    draft_ops,
    least,
    moved,
    qwen_ops,
    replay_ops,
    sampler_ops,
    scale_ops,
)
from luce_kernels_rocm.roofline.devices import device_arch, device_limits
from luce_kernels_rocm.roofline.entry import entry
from luce_kernels_rocm.roofline.experts import expert_layers
from luce_kernels_rocm.roofline.latent import latent_layers
from luce_kernels_rocm.roofline.models import models_named
from luce_kernels_rocm.roofline.shapes import DeltaShape, DraftShape, ModelShape, Step


def roofline(devices: tuple[str, ...], model: str | None) -> Roofline:
    """ConfigError for an unknown device or model."""
    limits = tuple(device_limits(name) for name in devices)
    arch = device_arch(limits[0].name)
    steps = tuple(
        StepCost(model=shape.name, step=step.name, ops=tuple(costs_of(shape, step, arch)))
        for shape in models_named(model)
        for step in shape.steps
    )
    return Roofline(devices=limits, steps=steps)


def costs_of(model: ModelShape, step: Step, arch: Arch) -> Iterator[OpCost]:
    """Each op of a step, in the order of a forward pass, and what comes behind it."""
    rows, logits = step.all_rows, step.all_logits
    width, facts = model.width, (model.embedding, rows, model.width)
    yield entry("embedding_rows", f"{width}", 1, least.embedding(*facts), moved.embedding(*facts))
    yield entry(
        "rms_norm", f"{width}", model.norms, least.norm(rows, 1, width), moved.norm(rows, 1, width)
    )
    for each in model.products:
        out = least.FLOAT if each.is_head else least.VALUE
        sizes = (each.qtype, each.n, each.k, each.rows(step), out)
        what = f"{each.name}: {each.qtype} {each.n} x {each.k}"
        yield entry(
            "quant_matmul", what, each.count, least.product(*sizes), moved.product(arch, *sizes)
        )
        if each.scaled:
            cost = scale_ops.affine(each.rows(step), each.n)
            yield entry("affine", f"{each.name}: {each.n}", each.count, *cost)
    if model.attentions:
        yield from _attention_layers(model, step, arch)
    if model.delta is not None:
        yield from _delta_layers(model.delta, step)
    if model.latent is not None:
        yield from latent_layers(model.latent, width, step, arch)
    if model.experts is not None:
        yield from expert_layers(model.experts, width, step, arch)
    gated = least.elementwise(rows, model.ff, operations=5), moved.elementwise(rows, model.ff)
    yield entry("swiglu", f"{model.ff}", model.swiglus, *gated)
    added = least.elementwise(rows, width, operations=1), moved.elementwise(rows, width)
    yield entry("add", f"{width}", model.adds, *added)
    if model.features:
        left = least.gather(rows, width), moved.gather(rows, width)
        yield entry("put_rows", f"{width}", model.features, *left)
    gathered = least.gather(logits, width), moved.gather(logits, width)
    yield entry("gather_rows", f"{width}", 1, *gathered)
    if model.draft is not None:
        yield from _draft_parts(model, model.draft, step)
        return
    best = least.greedy(logits, model.vocab), moved.greedy(logits, model.vocab)
    yield entry("greedy_token", f"{model.vocab}", 1, *best)
    kept = sampler_ops.kept_tokens(logits, model.vocab)
    yield entry("kept_tokens", f"{model.vocab}", 1, *kept)
    if model.delta is not None and step.is_verify:
        yield from _replays(model.delta, step)


def _attention_layers(model: ModelShape, step: Step, arch: Arch) -> Iterator[OpCost]:
    rows, layout, heads = step.all_rows, model.layout, model.heads
    head_dim, kv_heads = layout.head_dim, layout.kv_heads
    for name, number in (("q", heads), ("k", kv_heads)):
        sizes = (rows, number, head_dim)
        what = f"{name}: {number} x {head_dim}"
        calls = model.attentions * (2 if name == "k" and model.draft is not None else 1)
        if model.head_norms:
            normed = least.norm(*sizes), moved.norm(*sizes)
            yield entry("rms_norm", what, calls, *normed)
        turned = least.rope(*sizes, model.rotary_dim), moved.rope(*sizes, model.rotary_dim)
        yield entry("rope", what, calls, *turned)
    if model.draft is not None:
        what = f"{heads} over {kv_heads} x {head_dim}"
        taken = draft_ops.ring_write(kv_heads, head_dim, rows)
        yield entry("ring_write", f"{kv_heads} x {head_dim}", model.attentions, *taken)
        cost = draft_ops.draft_attention(model, model.draft.window, step)
        yield entry("draft_attention", what, model.attentions, *cost)
        return
    what = f"{kv_heads} x {head_dim}, {layout.k_type}"
    written = least.kv_write(layout, rows), moved.kv_write(layout, rows)
    yield entry("kv_write", what, model.attentions, *written)
    attended = least.attention(layout, heads, step), moved.attention(arch, layout, heads, step)
    yield entry("paged_attention", f"{heads} over {what}", model.attentions, *attended)
    if model.gated_heads:
        opened = qwen_ops.sigmoid_gate(rows, heads * head_dim)
        yield entry("sigmoid_gate", f"{heads * head_dim}", model.attentions, *opened)


def _delta_layers(delta: DeltaShape, step: Step) -> Iterator[OpCost]:
    what = f"{delta.channels}, {delta.taps} taps"
    yield entry("causal_conv1d", what, delta.count, *qwen_ops.causal_conv1d(delta, step))
    what = f"{delta.value_heads} x {delta.key_dim} x {delta.value_dim}"
    ruled = delta_rule.least(delta, step), delta_rule.moved(delta, step)
    yield entry("gated_delta", what, delta.count, *ruled)
    normed = qwen_ops.gated_rms_norm(step.all_rows, delta.value_heads, delta.value_dim)
    what = f"{delta.value_heads} x {delta.value_dim}"
    yield entry("gated_rms_norm", what, delta.count, *normed)


def _replays(delta: DeltaShape, step: Step) -> Iterator[OpCost]:
    what = f"{delta.channels}, {delta.taps} taps"
    yield entry("conv_replay", what, delta.count, *replay_ops.conv_replay(delta, step))
    what = f"{delta.value_heads} x {delta.key_dim} x {delta.value_dim}"
    replayed = replay_ops.gated_delta_replay(delta, step)
    yield entry("gated_delta_replay", what, delta.count, *replayed)


def _draft_parts(model: ModelShape, draft: DraftShape, step: Step) -> Iterator[OpCost]:
    taken = (step.all_rows, draft.features)
    what = f"{draft.features}"
    yield entry("take_rows", what, 1, least.gather(*taken), moved.gather(*taken))
    if draft.convolutions:
        what = f"{model.width}, {draft.taps} taps, groups of {draft.group}"
        cost = draft_ops.dynamic_conv(model.width, draft, step)
        yield entry("dynamic_conv", what, draft.convolutions, *cost)
    if not draft.top_k:
        drawn = draft_ops.draft_draw(step.all_logits, model.vocab)
        yield entry("draft_draw", f"{model.vocab}", 1, *drawn)
        return
    what = f"{draft.top_k} of {model.vocab}, rank {draft.rank}"
    yield entry("candidate_select", what, 1, *draft_ops.candidate_select(model.vocab, draft, step))
