"""The layers of attention over compressed entries, inside hyper-connections, op by op."""

from __future__ import annotations

from collections.abc import Iterator

from luce_core.ops.device_tools import OpCost
from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.roofline import expert_ops, latent_ops, least, moved, stream_ops
from luce_kernels_rocm.roofline.entry import entry
from luce_kernels_rocm.roofline.experts import expert_product
from luce_kernels_rocm.roofline.shapes import LatentShape, Step


def latent_layers(shape: LatentShape, width: int, step: Step, arch: Arch) -> Iterator[OpCost]:
    yield from _streams(shape, width, step.all_rows)
    yield from _rows(shape, step.all_rows)
    what = f"{shape.head_dim}"
    written = latent_ops.window_write(shape.head_dim, step.all_rows)
    yield entry("window_write", what, shape.count, *written)
    for each in (shape.sparse, shape.indexer, shape.dense):
        what = f"{each.name}: {each.ratio} to 1, {each.series} x {each.head_dim}"
        cost = latent_ops.compress_kv(each, shape.rotary_dim, step)
        yield entry("compress_kv", what, each.count, *cost)
    sparse, dense, top_k = shape.sparse, shape.dense, shape.top_k
    picked = (shape.index_heads, shape.indexer.head_dim, sparse.ratio, top_k, step)
    what = f"{top_k} by {shape.index_heads} x {shape.indexer.head_dim}"
    yield entry("index_topk", what, sparse.count, *latent_ops.index_topk(*picked))
    heads = f"{shape.heads} x {shape.head_dim}, {shape.window}"
    cost = latent_ops.window_attention(shape, sparse.ratio, top_k, step)
    yield entry("sparse_attention", f"{heads} and {top_k}", sparse.count, *cost)
    cost = latent_ops.window_attention(shape, dense.ratio, 0, step)
    yield entry("window_attention", f"{heads} and 1 of {dense.ratio}", dense.count, *cost)
    alone = shape.count - sparse.count - dense.count
    cost = latent_ops.window_attention(shape, 0, 0, step)
    yield entry("window_attention", heads, alone, *cost)
    grouped = expert_ops.group_route(step.all_rows, shape.groups)
    yield entry("group_route", f"{shape.groups}", 1, *grouped)
    yield expert_product(shape.group_product, step.all_rows, arch)


def _streams(shape: LatentShape, width: int, rows: int) -> Iterator[OpCost]:
    """Around two parts of each layer; what is merged last goes to the head."""
    sizes, what = (rows, shape.streams, width), f"{shape.streams} x {width}"
    yield entry("hyper_begin", what, 1, *stream_ops.hyper_begin(*sizes))
    parts = 2 * shape.count
    yield entry("hyper_mix", what, parts, *stream_ops.hyper_mix(*sizes, head=False))
    yield entry("hyper_mix", f"head: {what}", 1, *stream_ops.hyper_mix(*sizes, head=True))
    yield entry("hyper_merge", what, parts + 1, *stream_ops.hyper_merge(*sizes))
    yield entry("hyper_spread", what, parts, *stream_ops.hyper_spread(*sizes))


def _rows(shape: LatentShape, rows: int) -> Iterator[OpCost]:
    """Norms, and the turns of queries, of keys, of the result back, and of the indexer."""
    heads, dim = shape.heads, shape.head_dim
    for name, sizes in (("latent", (1, shape.query_rank)), ("q", (heads, dim)), ("kv", (1, dim))):
        normed = least.norm(rows, *sizes), moved.norm(rows, *sizes)
        yield entry("rms_norm", f"{name}: {sizes[0]} x {sizes[1]}", shape.count, *normed)
    indexed = (shape.index_heads, shape.indexer.head_dim)
    turns = (
        ("q and out", 2 * shape.count, (heads, dim)),
        ("kv", shape.count, (1, dim)),
        ("indexer", shape.indexer.count, indexed),
    )
    for name, count, sizes in turns:
        facts = (rows, *sizes, shape.rotary_dim)
        what = f"{name}: {sizes[0]} x {sizes[1]}"
        yield entry("tail_rope", what, count, least.rope(*facts), moved.rope(*facts))
