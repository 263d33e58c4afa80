"""Ops of block drafts: rows that outlive their step, convolution, rings, attention over them."""

from __future__ import annotations

import ctypes as c
from types import MappingProxyType

import torch
from torch import Tensor

from luce_kernels_cpu.native_op import Arg, Given, NativeOp, cache_address
from luce_kernels_cpu.provider import address
from luce_kernels_cpu.structs import Cache, CacheType, KvWriteArgs, Op, Rows

_RING_TYPES = MappingProxyType(
    {
        torch.float32: CacheType.F32,
        torch.float16: CacheType.F16,
        torch.bfloat16: CacheType.BF16,
    }
)


class Places(c.Structure):
    _fields_ = [
        ("buffer", c.c_void_p),
        ("places", c.c_void_p),
        ("rows", c.c_int32),
        ("width", c.c_int32),
        ("max_rows", c.c_int32),
    ]


class PutRowsArgs(c.Structure):
    _fields_ = [("x", Rows), ("at", Places), ("column", c.c_int32)]


class TakeRowsArgs(c.Structure):
    _fields_ = [("at", Places), ("out", Rows)]


class DynamicConvArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("delta", Rows),
        ("base", c.c_void_p),
        ("side", c.c_int32),
        ("taps", c.c_int32),
        ("group", c.c_int32),
        ("out", Rows),
    ]


class RingWriteArgs(c.Structure):
    _fields_ = [("write", KvWriteArgs), ("ring_rows", c.c_void_p), ("max_rows", c.c_int32)]


class DraftAttentionArgs(c.Structure):
    _fields_ = [
        ("q", Rows),
        ("k", Rows),
        ("v", Rows),
        ("k_ring", Cache),
        ("v_ring", Cache),
        ("heads", c.c_int32),
        ("window", c.c_int32),
        ("causal", c.c_int32),
        ("scale", c.c_float),
        ("out", Rows),
    ]


def ring_view(ring: Tensor) -> Cache:
    """Rings [slots + 1, ring, kv_heads, D] as a cache whose blocks are slots."""
    assert ring.is_contiguous(), ring.stride()
    slots, size, kv_heads, dim = ring.shape
    return Cache(ring.data_ptr(), _RING_TYPES[ring.dtype], kv_heads, dim, size, slots * size)


def _places(given: Given) -> Places:
    buffer, places = given.tensors["buffer"], given.tensors["places"]
    return Places(
        cache_address(buffer), cache_address(places, torch.int32), *buffer.shape, places.shape[0]
    )


def _put_rows(given: Given) -> c.Structure:
    return PutRowsArgs(given.rows["x"], _places(given), given.facts["column"])


def _take_rows(given: Given) -> c.Structure:
    return TakeRowsArgs(_places(given), given.rows["out"])


def _dynamic_conv(given: Given) -> c.Structure:
    rows, facts = given.rows, given.facts
    return DynamicConvArgs(
        rows["x"],
        rows["delta"],
        address(given.tensors["base"]),
        facts["side"],
        facts["taps"],
        facts["group"],
        rows["out"],
    )


def _ring_write(given: Given) -> c.Structure:
    tensors, ring_rows = given.tensors, given.tensors["ring_rows"]
    write = KvWriteArgs(
        given.rows["k"],
        given.rows["v"],
        ring_view(tensors["k_ring"]),
        ring_view(tensors["v_ring"]),
    )
    return RingWriteArgs(write, cache_address(ring_rows, torch.int32), ring_rows.shape[0])


def _draft_attention(given: Given) -> c.Structure:
    rows, facts = given.rows, given.facts
    return DraftAttentionArgs(
        rows["q"],
        rows["k"],
        rows["v"],
        ring_view(given.tensors["k_ring"]),
        ring_view(given.tensors["v_ring"]),
        facts["heads"],
        facts["window"],
        facts["causal"],
        facts["scale"],
        rows["out"],
    )


BLOCK_OPS = (
    NativeOp(
        name="put_rows",
        code=Op.PUT_ROWS,
        args={"x": Arg.TOKENS, "batch": Arg.BATCH, "places": Arg.READ, "buffer": Arg.WRITTEN},
        fill=_put_rows,
    ),
    NativeOp(
        name="take_rows",
        code=Op.TAKE_ROWS,
        args={"batch": Arg.BATCH, "places": Arg.READ, "buffer": Arg.READ, "out": Arg.TOKENS},
        fill=_take_rows,
    ),
    NativeOp(
        name="dynamic_conv",
        code=Op.DYNAMIC_CONV,
        args={
            "x": Arg.TOKENS,
            "delta": Arg.TOKENS,
            "batch": Arg.BATCH,
            "base": Arg.WEIGHT,
            "out": Arg.TOKENS,
        },
        fill=_dynamic_conv,
    ),
    NativeOp(
        name="ring_write",
        code=Op.RING_WRITE,
        args={
            "k": Arg.TOKENS,
            "v": Arg.TOKENS,
            "batch": Arg.BATCH,
            "ring_rows": Arg.READ,
            "k_ring": Arg.WRITTEN,
            "v_ring": Arg.WRITTEN,
        },
        fill=_ring_write,
    ),
    NativeOp(
        name="draft_attention",
        code=Op.DRAFT_ATTENTION,
        args={
            "q": Arg.TOKENS,
            "k": Arg.TOKENS,
            "v": Arg.TOKENS,
            "batch": Arg.BATCH,
            "k_ring": Arg.READ,
            "v_ring": Arg.READ,
            "out": Arg.TOKENS,
        },
        fill=_draft_attention,
        offer={"accepts": lambda facts: facts["head_dim"] <= 1024, "split_invariant": False},
    ),
)
