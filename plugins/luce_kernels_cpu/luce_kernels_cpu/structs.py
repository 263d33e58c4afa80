"""The records of csrc/luce_kernels.h as ctypes. Sizes are checked by the library on every call."""

from __future__ import annotations

import ctypes as c
from enum import IntEnum

ABI_VERSION = 1


class Op(IntEnum):
    """LK_OP_*: what a record is. HOST is none of the library's."""

    HOST = -1
    QUANTIZE = 0
    MATMUL = 1
    NORM = 2
    ROPE = 3
    KV_WRITE = 4
    ATTENTION = 5
    SWIGLU = 6
    ADD = 7
    EMBEDDING = 8
    GATHER = 9
    GREEDY_TOKEN = 10
    ROPE_WRITE = 11
    CAUSAL_CONV1D = 12
    CONV_REPLAY = 13
    GATED_DELTA = 14
    GATED_DELTA_REPLAY = 15
    GATED_NORM = 16
    SIGMOID_GATE = 17
    PUT_ROWS = 18
    AFFINE = 19
    TAKE_ROWS = 20
    DYNAMIC_CONV = 21
    RING_WRITE = 22
    DRAFT_ATTENTION = 23
    DRAFT_DRAW = 24
    CANDIDATE_SELECT = 25
    MOE_ROUTE = 26
    MOE_MATMUL = 27
    MOE_SUM = 28
    MOE_SCALE = 29
    GATE_UP = 30
    TURNS = 31
    PROJECT_HEADS = 32
    HEAD_TOKEN = 33
    TAIL_ROPE = 34
    WINDOW_WRITE = 35
    COMPRESS_KV = 36
    INDEX_TOPK = 37
    ENTRY_ATTENTION = 38
    GROUP_ROUTE = 39
    ROUTE_BY_TOKEN = 40
    HYPER_BEGIN = 41
    HYPER_MIX = 42
    HYPER_MERGE = 43
    HYPER_SPREAD = 44


class Domain(IntEnum):
    """LK_ROWS_*: which count of the batch the rows of an activation follow."""

    TOKENS = 0
    LOGITS = 1
    FIXED = 2


class CacheType(IntEnum):
    """LK_F32 ...: how a cache stores a row, by luce's names in lower case."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_0 = 3
    Q4_0 = 4


class Batch(c.Structure):
    _fields_ = [
        ("token_ids", c.c_void_p),
        ("positions", c.c_void_p),
        ("cu_seqlens", c.c_void_p),
        ("slot_ids", c.c_void_p),
        ("context_lens", c.c_void_p),
        ("block_tables", c.c_void_p),
        ("kv_rows", c.c_void_p),
        ("logit_rows", c.c_void_p),
        ("cu_logits", c.c_void_p),
        ("logits_read", c.c_void_p),
        ("rows", c.c_int32),
        ("segments", c.c_int32),
        ("logits", c.c_int32),
        ("num_prefill", c.c_int32),
        ("prefill_rows", c.c_int32),
        ("max_query", c.c_int32),
        ("max_context", c.c_int32),
        ("table_stride", c.c_int32),
    ]


class Limits(c.Structure):
    _fields_ = [("rows", c.c_int32), ("logits", c.c_int32), ("segments", c.c_int32)]


class Rows(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("stride", c.c_int64),
        ("width", c.c_int32),
        ("domain", c.c_int32),
        ("rows", c.c_int32),
    ]


class Quantized(c.Structure):
    _fields_ = [
        ("q", c.c_void_p),
        ("d", c.c_void_p),
        ("s", c.c_void_p),
        ("q_stride", c.c_int64),
        ("d_stride", c.c_int64),
        ("k", c.c_int32),
        ("block", c.c_int32),
    ]


class QuantizeArgs(c.Structure):
    _fields_ = [("x", Rows), ("out", Quantized)]


class MatmulArgs(c.Structure):
    _fields_ = [
        ("weight", c.c_void_p),
        ("x", Rows),
        ("xq", Quantized),
        ("bias", c.c_void_p),
        ("residual", Rows),
        ("out", Rows),
    ]


class NormArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("weight", c.c_void_p),
        ("eps", c.c_float),
        ("group", c.c_int32),
        ("out", Rows),
        ("quantized", Quantized),
    ]


class RopeArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("inv_freq", c.c_void_p),
        ("heads", c.c_int32),
        ("dim", c.c_int32),
        ("pairs", c.c_int32),
        ("interleaved", c.c_int32),
        ("factor", c.c_float),
        ("out", Rows),
    ]


class Cache(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("type", c.c_int32),
        ("kv_heads", c.c_int32),
        ("dim", c.c_int32),
        ("block_size", c.c_int32),
        ("rows", c.c_int64),
    ]


class KvWriteArgs(c.Structure):
    _fields_ = [("k", Rows), ("v", Rows), ("k_cache", Cache), ("v_cache", Cache)]


class RopeWriteArgs(c.Structure):
    _fields_ = [
        ("q", RopeArgs),
        ("k", RopeArgs),
        ("q_norm", c.c_void_p),
        ("k_norm", c.c_void_p),
        ("q_eps", c.c_float),
        ("k_eps", c.c_float),
        ("v", Rows),
        ("k_cache", Cache),
        ("v_cache", Cache),
    ]


class AttentionArgs(c.Structure):
    _fields_ = [
        ("q", Rows),
        ("k_cache", Cache),
        ("v_cache", Cache),
        ("heads", c.c_int32),
        ("scale", c.c_float),
        ("out", Rows),
        ("partials", c.c_void_p),
        ("partials_bytes", c.c_int64),
        ("quantized", Quantized),
    ]


class SwigluArgs(c.Structure):
    _fields_ = [
        ("gate", Rows),
        ("up", Rows),
        ("out", Rows),
        ("limit", c.c_float),
        ("quantized", Quantized),
    ]


class AddArgs(c.Structure):
    _fields_ = [("a", Rows), ("b", Rows), ("out", Rows)]


class EmbeddingArgs(c.Structure):
    _fields_ = [("table", c.c_void_p), ("out", Rows)]


class GatherArgs(c.Structure):
    _fields_ = [("x", Rows), ("out", Rows)]


class GreedyTokenArgs(c.Structure):
    _fields_ = [("x", Rows), ("out", c.c_void_p)]
