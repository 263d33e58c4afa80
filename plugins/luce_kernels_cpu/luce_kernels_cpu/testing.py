"""Random weights of every GGUF type, packed on pools of several sizes, and calls of the kernels."""

from __future__ import annotations

import ctypes as c
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from luce_core.weights.quant_types import QuantTensor, dequantize, quant_type
from luce_core.weights.synthetic_blocks import SYNTHETIC_TYPES, random_chunks
from luce_kernels_cpu import structs
from luce_kernels_cpu.library import native
from luce_kernels_cpu.native_weight import NativeWeight
from luce_kernels_cpu.provider import Provider
from luce_kernels_cpu.structs import Domain, Op
from luce_kernels_cpu.views import (
    NO_QUANTIZED,
    NO_ROWS,
    quantized_at,
    quantized_bytes,
    tensor_rows,
)
from luce_kernels_cpu.weight_types import WEIGHT_TYPES

ISAS = ("avx2", "avx512", "avx512-vnni", "amx")
TYPES = tuple(sorted(WEIGHT_TYPES))
BATCH = structs.Batch()


@cache
def pool(workers: int) -> Provider:
    made = Provider(native())
    made.set_threads(workers)
    return made


@cache
def random_weight(qtype: str, n: int, k: int, seed: int = 0) -> QuantTensor:
    kind = quant_type(qtype)
    rng = np.random.default_rng(seed)
    if qtype in SYNTHETIC_TYPES:
        raw = bytearray(b"".join(bytes(x) for x in random_chunks(kind, n * k, 1.0, 0.0, rng)))
    elif qtype == "F64":
        raw = bytearray(rng.standard_normal(n * k).tobytes())
    else:
        raw = bytearray(rng.bytes(n * kind.row_bytes(k)))
    blocks = torch.frombuffer(raw, dtype=torch.uint8).view(n, kind.row_bytes(k))
    return QuantTensor("w", kind, (n, k), blocks)


@cache
def values(qtype: str, n: int, k: int, seed: int = 0) -> Tensor:
    weight = random_weight(qtype, n, k, seed)
    return dequantize(weight.blocks, qtype)


def columns_of(qtype: str) -> int:
    """Two file blocks, or an odd number of elements."""
    size = quant_type(qtype).block_values
    return 2 * size if size > 64 else 6 * size if size > 1 else 75


class Quantized:
    """An lk_quantized of x [R, K], made by lk_quantize: q [R, K], d [R, K / block], s [R, K / 32]
    or, for blocks of 256, the sums of 16 quants [R, K / 16]."""

    def __init__(self, owner: Provider, x: Tensor, block: int = 32) -> None:
        rows, k = x.shape
        self._memory = torch.full((quantized_bytes(rows, k) + 64,), 0xAA, dtype=torch.uint8)
        self.record = quantized_at(-(-self._memory.data_ptr() // 64) * 64, rows, k, block)
        owner.run(Op.QUANTIZE, structs.QuantizeArgs(tensor_rows(x), self.record), BATCH)
        self.q = self._field(self.record.q, rows * k, torch.int8).view(rows, k)
        self.d = self._field(self.record.d, rows * k // 8, torch.float32).view(rows, k // 32)
        self.d = self.d[:, : k // block]
        kind = torch.float32 if block == 32 else torch.int16
        self.s = self._field(self.record.s, rows * k // 8, kind).view(rows, -1)

    def _field(self, address: int, size: int, dtype: torch.dtype) -> Tensor:
        start = address - self._memory.data_ptr()
        return self._memory[start : start + size].view(dtype)


def matmul(
    owner: Provider,
    weight: NativeWeight,
    x: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """lk_matmul into NaN; `out` may be given, and may be the residual itself."""
    if out is None:
        out = torch.full((x.shape[0], weight.n), float("nan"))
    quantized: Any = (
        Quantized(owner, x, weight.int8_block) if weight.takes_int8 else SimpleNamespace()
    )
    args = structs.MatmulArgs(
        weight.handle,
        tensor_rows(x),
        getattr(quantized, "record", NO_QUANTIZED),
        None if bias is None else bias.data_ptr(),
        NO_ROWS if residual is None else tensor_rows(residual),
        tensor_rows(out),
    )
    owner.run(Op.MATMUL, args, BATCH)
    return out


def embed(owner: Provider, weight: NativeWeight, ids: Tensor) -> Tensor:
    out = torch.full((len(ids), weight.k), float("nan"))
    batch = structs.Batch(token_ids=ids.data_ptr(), rows=len(ids))
    rows = tensor_rows(out, Domain.TOKENS)
    owner.run(Op.EMBEDDING, structs.EmbeddingArgs(weight.handle, rows), batch)
    return out


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def force_isa(name: str) -> bool:
    return bool(native().lk_force_isa(c.c_char_p(name.encode())) == 0)
