"""Kernels for ops called one by one: what they mean to the registry, and the parity tests' way in.

A step that was recorded does not come here; see recorder.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_cpu import structs
from luce_kernels_cpu.batch_view import fill_batch
from luce_kernels_cpu.native_op import QuantizedRows
from luce_kernels_cpu.native_weight import NativeWeight
from luce_kernels_cpu.provider import address, provider
from luce_kernels_cpu.structs import Domain, Op
from luce_kernels_cpu.views import (
    NO_QUANTIZED,
    NO_ROWS,
    cache_view,
    partials_bytes,
    representable,
    tensor_rows,
)


def quant_matmul(
    x: Tensor,  # [R, K]
    weight: NativeWeight,
    bias: Tensor | None,  # [N]
    out: Tensor,  # [R, N]
    **facts: Any,
) -> None:
    x = representable(x)
    rows = x.shape[0]
    batch = structs.Batch(rows=rows)
    made = QuantizedRows(x, weight.int8_block) if weight.takes_int8 else None
    quantized = NO_QUANTIZED if made is None else made.record
    args = structs.MatmulArgs(
        weight.handle, tensor_rows(x), quantized, address(bias), NO_ROWS, tensor_rows(out)
    )
    provider().run(Op.MATMUL, args, batch)


def embedding_rows(
    token_ids: Tensor,  # [T]
    table: NativeWeight,
    out: Tensor,  # [T, K]
    **facts: Any,
) -> None:
    batch = structs.Batch(token_ids=indices(token_ids).data_ptr(), rows=out.shape[0])
    args = structs.EmbeddingArgs(table.handle, tensor_rows(out, Domain.TOKENS))
    provider().run(Op.EMBEDDING, args, batch)


def rms_norm(
    x: Tensor,  # [R, D] or [R, H, D]
    weight: Tensor,  # [D]
    out: Tensor,  # like x
    *,
    eps: float,
) -> None:
    x = representable(x)
    args = structs.NormArgs(
        tensor_rows(x), weight.data_ptr(), eps, x.shape[-1], tensor_rows(out), NO_QUANTIZED
    )
    provider().run(Op.NORM, args, structs.Batch(rows=x.shape[0]))


def rope(
    x: Tensor,  # [T, H, D]
    positions: Tensor,  # [T]
    out: Tensor,  # [T, H, D]
    *,
    inv_freq: Tensor,  # [rotary_dim / 2]
    attention_factor: float,
    rotary_dim: int,
    interleaved: bool,
) -> None:
    x, positions = representable(x), indices(positions)
    args = structs.RopeArgs(
        tensor_rows(x, Domain.TOKENS),
        inv_freq.data_ptr(),
        x.shape[1],
        x.shape[2],
        rotary_dim // 2,
        interleaved,
        attention_factor,
        tensor_rows(out, Domain.TOKENS),
    )
    batch = structs.Batch(positions=positions.data_ptr(), rows=x.shape[0])
    provider().run(Op.ROPE, args, batch)


def kv_write(
    k: Tensor,  # [T, kv_heads, D]
    v: Tensor,  # [T, kv_heads, D]
    kv_rows: Tensor,  # [T]
    k_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]  in place
    v_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]  in place
    *,
    k_type: str,
    v_type: str,
    **facts: Any,
) -> None:
    k, v, kv_rows = representable(k), representable(v), indices(kv_rows)
    args = structs.KvWriteArgs(
        tensor_rows(k, Domain.TOKENS),
        tensor_rows(v, Domain.TOKENS),
        cache_view(k_cache, k_type, facts),
        cache_view(v_cache, v_type, facts),
    )
    provider().run(Op.KV_WRITE, args, structs.Batch(kv_rows=kv_rows.data_ptr(), rows=k.shape[0]))


def paged_attention(
    q: Tensor,  # [T, heads, D]
    batch: PackedBatch,
    k_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]
    v_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]
    out: Tensor,  # [T, heads, D]
    *,
    heads: int,
    k_type: str,
    v_type: str,
    scale: float,
    **facts: Any,
) -> None:
    q = representable(q)
    rows = batch.rows - batch.prefill_rows
    size = partials_bytes(rows=rows, keys=batch.max_context, heads=heads, dim=q.shape[2])
    partials = torch.empty(size, dtype=torch.uint8)
    args = structs.AttentionArgs(
        tensor_rows(q, Domain.TOKENS),
        cache_view(k_cache, k_type, facts),
        cache_view(v_cache, v_type, facts),
        heads,
        scale,
        tensor_rows(out, Domain.TOKENS),
        partials.data_ptr(),
        size,
    )
    native_batch = structs.Batch()
    fill_batch(native_batch, batch)
    provider().run(Op.ATTENTION, args, native_batch)


def swiglu(
    gate: Tensor,  # [R, N]
    up: Tensor,  # [R, N]
    out: Tensor,  # [R, N]
    *,
    limit: float | None,
) -> None:
    gate, up = representable(gate), representable(up)
    args = structs.SwigluArgs(
        tensor_rows(gate), tensor_rows(up), tensor_rows(out), limit or 0.0, NO_QUANTIZED
    )
    provider().run(Op.SWIGLU, args, structs.Batch(rows=gate.shape[0]))


def add(
    a: Tensor,  # [R, N]
    b: Tensor,  # [R, N]
    out: Tensor,  # [R, N]
) -> None:
    a, b = representable(a), representable(b)
    args = structs.AddArgs(tensor_rows(a), tensor_rows(b), tensor_rows(out))
    provider().run(Op.ADD, args, structs.Batch(rows=a.shape[0]))


def gather_rows(
    x: Tensor,  # [T, N]
    rows: Tensor,  # [L]
    out: Tensor,  # [L, N]
) -> None:
    x, rows = representable(x), indices(rows)
    args = structs.GatherArgs(tensor_rows(x, Domain.TOKENS), tensor_rows(out, Domain.LOGITS))
    batch = structs.Batch(logit_rows=rows.data_ptr(), rows=x.shape[0], logits=rows.shape[0])
    provider().run(Op.GATHER, args, batch)


def greedy_token(
    logits: Tensor,  # [R, V]
    out: Tensor,  # [R] int32
) -> None:
    logits = representable(logits)
    args = structs.GreedyTokenArgs(tensor_rows(logits), out.data_ptr())
    provider().run(Op.GREEDY_TOKEN, args, structs.Batch(rows=logits.shape[0]))


def indices(values: Tensor) -> Tensor:
    """As the library reads a field of the batch."""
    return values.to(torch.int32).contiguous()


def accepts_limit(facts: Mapping[str, Any]) -> bool:
    """In the library's record a limit of 0 means that there is none."""
    return facts["limit"] is None or facts["limit"] > 0
