"""DeepSeek V4's ops: the window, compressed entries, attention over both, routes, streams."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from luce_kernels_cpu.block_ops import ring_view
from luce_kernels_cpu.native_op import Arg, Given, NativeOp, cache_address
from luce_kernels_cpu.provider import address
from luce_kernels_cpu.state_ops import Slots
from luce_kernels_cpu.structs import Cache, CacheType, Op, Rows
from luce_kernels_cpu.views import NO_ROWS

MOST_DIM = 1024  # LK_MOST_ENTRY_DIM
MOST_PICKS = 8192  # LK_MOST_PICKS
MOST_STREAMS = 8  # LK_MOST_STREAMS
MOST_ROTARY_DIM = 512


class TailRopeArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("inv_freq", c.c_void_p),
        ("heads", c.c_int32),
        ("dim", c.c_int32),
        ("pairs", c.c_int32),
        ("factor", c.c_float),
        ("out", Rows),
    ]


class WindowWriteArgs(c.Structure):
    _fields_ = [("kv", Rows), ("ring", Cache)]


class CompressKvArgs(c.Structure):
    _fields_ = [
        ("values", Rows),
        ("gates", Rows),
        ("pool", c.c_void_p),
        ("cache", Cache),
        ("ape", c.c_void_p),
        ("norm", c.c_void_p),
        ("inv_freq", c.c_void_p),
        ("series", c.c_int32),
        ("ratio", c.c_int32),
        ("pairs", c.c_int32),
        ("eps", c.c_float),
        ("factor", c.c_float),
        ("slots", Slots),
    ]


class IndexTopkArgs(c.Structure):
    _fields_ = [
        ("q", Rows),
        ("weights", Rows),
        ("cache", Cache),
        ("heads", c.c_int32),
        ("ratio", c.c_int32),
        ("top_k", c.c_int32),
        ("out", Rows),
    ]


class EntryAttentionArgs(c.Structure):
    _fields_ = [
        ("q", Rows),
        ("picks", Rows),
        ("ring", Cache),
        ("cache", Cache),
        ("sinks", c.c_void_p),
        ("heads", c.c_int32),
        ("window", c.c_int32),
        ("ratio", c.c_int32),
        ("scale", c.c_float),
        ("out", Rows),
    ]


class GroupRouteArgs(c.Structure):
    _fields_ = [("out", Rows), ("groups", c.c_int32)]


class RouteByTokenArgs(c.Structure):
    _fields_ = [
        ("logits", Rows),
        ("out", Rows),
        ("table", c.c_void_p),
        ("vocabulary", c.c_int64),
        ("top_k", c.c_int32),
        ("scale", c.c_float),
    ]


class HyperBeginArgs(c.Structure):
    _fields_ = [("x", Rows), ("out", Rows), ("streams", c.c_int32)]


class HyperMixArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("fn", c.c_void_p),
        ("base", c.c_void_p),
        ("scale", c.c_void_p),
        ("streams", c.c_int32),
        ("head", c.c_int32),
        ("iterations", c.c_int32),
        ("eps", c.c_float),
        ("hc_eps", c.c_float),
        ("out", Rows),
    ]


class HyperMergeArgs(c.Structure):
    _fields_ = [("x", Rows), ("mix", Rows), ("out", Rows), ("streams", c.c_int32)]


class HyperSpreadArgs(c.Structure):
    _fields_ = [("x", Rows), ("mix", Rows), ("y", Rows), ("out", Rows), ("streams", c.c_int32)]


def entry_view(cache: Tensor, facts: Mapping[str, Any]) -> Cache:
    """Entries [blocks + 1, entries of a block, row] as a cache of one head."""
    assert cache.is_contiguous(), cache.stride()
    blocks, size, _ = cache.shape
    kind = CacheType[facts["cache_type"].upper()]
    return Cache(cache.data_ptr(), kind, 1, facts["head_dim"], size, blocks * size)


def window_view(ring: Tensor) -> Cache:
    """A ring [slots + 1, entries, D] as a cache of one head whose blocks are slots."""
    return ring_view(ring.unsqueeze(2))


def accepts_heads(facts: Mapping[str, Any]) -> bool:
    return bool(facts["head_dim"] <= MOST_DIM)


def accepts_turns(facts: Mapping[str, Any]) -> bool:
    return bool(facts["rotary_dim"] <= MOST_ROTARY_DIM)


def accepts_streams(facts: Mapping[str, Any]) -> bool:
    return bool(facts["streams"] <= MOST_STREAMS)


def _tail_rope(given: Given) -> c.Structure:
    x, facts = given.rows["x"], given.facts
    dim = facts["head_dim"]
    return TailRopeArgs(
        x,
        address(facts["inv_freq"]),
        x.width // dim,
        dim,
        facts["rotary_dim"] // 2,
        facts["attention_factor"],
        given.rows["out"],
    )


def _window_write(given: Given) -> c.Structure:
    return WindowWriteArgs(given.rows["kv"], window_view(given.tensors["ring"]))


def _compress_kv(given: Given) -> c.Structure:
    rows, tensors, facts = given.rows, given.tensors, given.facts
    pool = tensors["pool"]
    return CompressKvArgs(
        rows["values"],
        rows["gates"],
        cache_address(pool),
        entry_view(tensors["cache"], facts),
        address(tensors["ape"]),
        address(tensors["norm"]),
        address(facts["inv_freq"]),
        pool.shape[1],
        facts["ratio"],
        facts["rotary_dim"] // 2,
        facts["eps"],
        facts["attention_factor"],
        Slots(pool.shape[0]),
    )


def _index_topk(given: Given) -> c.Structure:
    rows, facts = given.rows, given.facts
    return IndexTopkArgs(
        rows["q"],
        rows["weights"],
        entry_view(given.tensors["cache"], facts),
        facts["heads"],
        facts["ratio"],
        facts["top_k"],
        rows["out"],
    )


def _attention(given: Given, picks: Rows) -> c.Structure:
    rows, tensors, facts = given.rows, given.tensors, given.facts
    return EntryAttentionArgs(
        rows["q"],
        picks,
        window_view(tensors["ring"]),
        entry_view(tensors["cache"], facts) if facts["ratio"] else Cache(),
        address(tensors["sinks"]),
        facts["heads"],
        facts["window"],
        facts["ratio"],
        facts["scale"],
        rows["out"],
    )


def _window_attention(given: Given) -> c.Structure:
    return _attention(given, NO_ROWS)


def _sparse_attention(given: Given) -> c.Structure:
    return _attention(given, given.rows["picks"])


def _group_route(given: Given) -> c.Structure:
    return GroupRouteArgs(given.rows["out"], given.facts["groups"])


def _route_by_token(given: Given) -> c.Structure:
    table, facts = given.tensors["table"], given.facts
    return RouteByTokenArgs(
        given.rows["logits"],
        given.rows["out"],
        address(table),
        table.shape[0],
        facts["top_k"],
        facts["scale"],
    )


def _hyper_begin(given: Given) -> c.Structure:
    return HyperBeginArgs(given.rows["x"], given.rows["out"], given.facts["streams"])


def _hyper_mix(given: Given) -> c.Structure:
    tensors, facts = given.tensors, given.facts
    return HyperMixArgs(
        given.rows["x"],
        *(address(tensors[name]) for name in ("fn", "base", "scale")),
        facts["streams"],
        facts["head"],
        facts["iterations"],
        facts["eps"],
        facts["hc_eps"],
        given.rows["out"],
    )


def _hyper_merge(given: Given) -> c.Structure:
    rows = given.rows
    return HyperMergeArgs(rows["x"], rows["mix"], rows["out"], given.facts["streams"])


def _hyper_spread(given: Given) -> c.Structure:
    rows = given.rows
    return HyperSpreadArgs(rows["x"], rows["mix"], rows["y"], rows["out"], given.facts["streams"])


def _attention_args(*more: str) -> Mapping[str, Arg]:
    return {
        "q": Arg.TOKENS,
        **dict.fromkeys(more, Arg.TOKENS),
        "batch": Arg.BATCH,
        "ring": Arg.READ,
        "cache": Arg.READ,
        "sinks": Arg.WEIGHT,
        "out": Arg.TOKENS,
    }


DEEPSEEK_OPS = (
    NativeOp(
        name="tail_rope",
        code=Op.TAIL_ROPE,
        args={"x": Arg.TOKENS, "batch": Arg.BATCH, "out": Arg.TOKENS},
        fill=_tail_rope,
        offer={"accepts": accepts_turns},
    ),
    NativeOp(
        name="window_write",
        code=Op.WINDOW_WRITE,
        args={"kv": Arg.TOKENS, "batch": Arg.BATCH, "ring": Arg.WRITTEN},
        fill=_window_write,
    ),
    NativeOp(
        name="compress_kv",
        code=Op.COMPRESS_KV,
        args={
            "values": Arg.TOKENS,
            "gates": Arg.TOKENS,
            "batch": Arg.BATCH,
            "pool": Arg.MOVED,
            "cache": Arg.WRITTEN,
            "ape": Arg.WEIGHT,
            "norm": Arg.WEIGHT,
        },
        fill=_compress_kv,
        offer={"accepts": lambda facts: accepts_heads(facts) and accepts_turns(facts)},
    ),
    NativeOp(
        name="index_topk",
        code=Op.INDEX_TOPK,
        args={
            "q": Arg.TOKENS,
            "weights": Arg.TOKENS,
            "batch": Arg.BATCH,
            "cache": Arg.READ,
            "out": Arg.TOKENS,
        },
        fill=_index_topk,
        offer={"accepts": lambda facts: accepts_heads(facts) and facts["top_k"] <= MOST_PICKS},
    ),
    NativeOp(
        name="window_attention",
        code=Op.ENTRY_ATTENTION,
        args=_attention_args(),
        fill=_window_attention,
        offer={"accepts": accepts_heads},
    ),
    NativeOp(
        name="sparse_attention",
        code=Op.ENTRY_ATTENTION,
        args=_attention_args("picks"),
        fill=_sparse_attention,
        offer={"accepts": accepts_heads},
    ),
    NativeOp(
        name="group_route",
        code=Op.GROUP_ROUTE,
        args={"batch": Arg.BATCH, "out": Arg.TOKENS},
        fill=_group_route,
    ),
    NativeOp(
        name="moe_route_by_token",
        code=Op.ROUTE_BY_TOKEN,
        args={"logits": Arg.TOKENS, "batch": Arg.BATCH, "table": Arg.WEIGHT, "out": Arg.TOKENS},
        fill=_route_by_token,
    ),
    NativeOp(
        name="hyper_begin",
        code=Op.HYPER_BEGIN,
        args={"x": Arg.ANY, "out": Arg.ANY},
        fill=_hyper_begin,
        offer={"accepts": accepts_streams},
    ),
    NativeOp(
        name="hyper_mix",
        code=Op.HYPER_MIX,
        args={
            "x": Arg.ANY,
            "fn": Arg.WEIGHT,
            "base": Arg.WEIGHT,
            "scale": Arg.WEIGHT,
            "out": Arg.ANY,
        },
        fill=_hyper_mix,
        offer={"accepts": accepts_streams},
    ),
    NativeOp(
        name="hyper_merge",
        code=Op.HYPER_MERGE,
        args={"x": Arg.ANY, "mix": Arg.ANY, "out": Arg.ANY},
        fill=_hyper_merge,
        offer={"accepts": accepts_streams},
    ),
    NativeOp(
        name="hyper_spread",
        code=Op.HYPER_SPREAD,
        args={"x": Arg.ANY, "mix": Arg.ANY, "y": Arg.ANY, "out": Arg.ANY},
        fill=_hyper_spread,
        offer={"accepts": accepts_streams},
    ),
)
