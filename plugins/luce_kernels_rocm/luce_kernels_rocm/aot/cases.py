"""Op calls at the shapes of real models, for compiling ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import CACHE_TYPES, KvLayout
from luce_core.ops.registry import OpRegistry
from luce_core.request import SamplingParams
from luce_core.sampling.filters import row_filters
from luce_core.weights.quant_types import QUANT_TYPES, QuantTensor
from luce_kernels_rocm.aot.steps import step
from luce_kernels_rocm.offers import GPU_DTYPES, register_kernels
from luce_kernels_rocm.quant_table import QUANTS

CPU = Device("cpu")
WIDTH = 5120
HEAD_DIM = 256
VOCAB = 151_936
# Of the files that the plugins are made for.
CRITICAL_QUANTS = ("Q4_K", "Q6_K", "Q8_0", "IQ4_XS")
CRITICAL_CACHES = (("q8_0", HEAD_DIM, 24), ("f16", 128, 24))


@dataclass(frozen=True, slots=True)
class AotCase:
    """One op call. Critical ones, those of every decode step, are compiled in every test run."""

    name: str
    run: Callable[[], Any]
    critical: bool


def registry() -> OpRegistry:
    """Core ops with this plugin's kernels on CPU tensors."""
    made = core_registry()
    register_kernels(made.register_kernel, devices=("cpu",), dtypes=GPU_DTYPES)
    return made


def cases(dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)) -> Iterator[AotCase]:
    """Every case, each at its first dtype critical at most."""
    # Needs triton, which only compiling does.
    from luce_kernels_rocm.aot.model_cases import model_cases

    made = registry()
    for place, dtype in enumerate(dtypes):
        short = str(dtype).removeprefix("torch.")

        def case(
            op: str,
            variant: str,
            facts: Mapping[str, Any],
            args: tuple[Any, ...],
            weights: tuple[Any, ...] = (),
            *,
            critical: bool = False,
            dtype: torch.dtype = dtype,
            name: str = short,
            first: bool = place == 0,
        ) -> AotCase:
            binder = made.binder(CPU, dtype)

            def run() -> None:
                binder.bind(op, weights=weights, **facts)(*args)

            return AotCase(f"{op} {variant} {name}".replace("  ", " "), run, critical and first)

        yield from _rows(case, dtype)
        yield from _products(case, dtype)
        yield from _attention(case, dtype)
        yield from _fused(dtype, short, place == 0)
        yield from model_cases(dtype, short, place == 0)


Make = Callable[..., AotCase]


def _rows(case: Make, dtype: torch.dtype) -> Iterator[AotCase]:
    def rows(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=dtype)

    positions = torch.zeros(4, dtype=torch.int32)
    weight = torch.empty(WIDTH)
    yield case("rms_norm", "", {"eps": 1e-6}, (rows(4, WIDTH),), (weight,), critical=True)
    heads = torch.empty(HEAD_DIM)
    yield case("rms_norm", "heads", {"eps": 1e-6}, (rows(4, 24, HEAD_DIM),), (heads,))
    wide = rows(4, WIDTH)
    yield case("add", "", {}, (wide, wide), critical=True)
    yield case("swiglu", "", {}, (wide, wide), critical=True)
    yield case("swiglu", "limited", {"limit": 10.0}, (wide, wide))
    yield case("gather_rows", "", {}, (wide, positions), critical=True)
    logits = torch.empty(4, VOCAB)
    yield case("greedy_token", "", {}, (logits,), critical=True)
    filters = row_filters([SamplingParams(top_k=20, top_p=0.9)] * 4, VOCAB, "cpu")
    yield case("kept_tokens", "", {}, (logits, logits, *filters[:3]), critical=True)
    turn = {"rotary_dim": 64, "interleaved": False, "theta": 1e7}
    q = rows(4, 24, HEAD_DIM)
    yield case("rope", "part", turn, (q, positions), critical=True)
    pairs = {**turn, "rotary_dim": HEAD_DIM, "interleaved": True}
    yield case("rope", "pairs", pairs, (q, positions))
    for cache_type in CACHE_TYPES:
        layout = cache_layout(cache_type)
        cache = layout.allocate(1)
        kv = rows(4, layout.kv_heads, HEAD_DIM)
        yield case(
            "kv_write",
            cache_type,
            layout.facts,
            (kv, kv, positions, cache.k, cache.v),
            critical=cache_type in ("f16", "q8_0"),
        )


def _products(case: Make, dtype: torch.dtype) -> Iterator[AotCase]:
    for qtype in QUANTS:
        weight = blank_weight(WIDTH, WIDTH, qtype)
        facts = {"qtype": qtype, "n": WIDTH, "k": WIDTH}
        for rows in (1, 4, 8, 512):
            x = torch.empty(rows, WIDTH, dtype=dtype)
            yield case(
                "quant_matmul",
                f"{qtype} {rows} rows",
                facts,
                (x,),
                (weight, None),
                critical=(qtype in CRITICAL_QUANTS and rows in (1, 8))
                or (qtype == "IQ4_XS" and rows == 512),
            )
        tokens = torch.zeros(4, dtype=torch.int32)
        yield case("embedding_rows", qtype, facts, (tokens,), (weight,), critical=qtype == "Q4_K")


def _fused(dtype: torch.dtype, short: str, is_first: bool) -> Iterator[AotCase]:
    # They need triton, which the list of cases does not.
    from luce_kernels_rocm.ops import fused
    from luce_kernels_rocm.ops.quant_matmul import narrow_matmul, quant_matmul

    for rows in (1, 8):
        x = torch.empty(rows, WIDTH, dtype=dtype)
        out, total = torch.empty_like(x), torch.empty_like(x)
        norm: dict[str, Any] = {"norm": torch.empty(WIDTH), "eps": 1e-6}
        blocks = blank_weight(WIDTH, WIDTH, "IQ4_XS").blocks
        facts: dict[str, Any] = {"qtype": "IQ4_XS", "n": WIDTH, "k": WIDTH, "residual": x}
        weight = (blocks, "IQ4_XS")
        gates: dict[str, Any] = {"limit": None}
        calls: dict[str, Callable[[], None]] = {
            "sum and norm": partial(
                fused.add_rms_norm, x, x, norm["norm"], total, out, eps=norm["eps"]
            ),
            "norm, product, residual": partial(
                narrow_matmul, x, blocks, None, out, **facts, **norm
            ),
            "gate and up": partial(fused.swiglu_matmul, x, weight, weight, out, **gates),
            "norm, gate and up": partial(
                fused.swiglu_matmul, x, weight, weight, out, **gates, **norm
            ),
        }
        for name, call in calls.items():
            critical = is_first and rows == 8
            yield AotCase(f"fused {name} {rows} rows {short}", call, critical)

    for qtype in CRITICAL_QUANTS:
        for rows in (8, 512):
            x = torch.empty(rows, WIDTH, dtype=dtype)
            facts = {"qtype": qtype, "n": WIDTH, "k": WIDTH, "residual": x}
            blocks = blank_weight(WIDTH, WIDTH, qtype).blocks
            call = partial(quant_matmul, x, blocks, None, torch.empty_like(x), **facts)
            yield AotCase(f"fused product, residual {qtype} {rows} rows {short}", call, False)


def _attention(case: Make, dtype: torch.dtype) -> Iterator[AotCase]:
    usual = [(kind, dim, 24) for kind in ("f16", "q8_0", "q4_0") for dim in (64, 128, HEAD_DIM)]
    # Other caches, the widest heads, and as many heads for a key head as fill two tiles.
    rare = [("f32", 128, 24), ("bf16", 128, 24), ("bf16", HEAD_DIM, 24)]
    rare += [(kind, dim, 24) for kind in ("f16", "q8_0") for dim in (96, 512)]
    rare += [(kind, dim, 128) for kind in ("f16", "q8_0") for dim in (128, HEAD_DIM)]
    for cache_type, head_dim, heads in (*usual, *rare):
        layout = KvLayout(
            kv_heads=4, head_dim=head_dim, block_size=16, k_type=cache_type, v_type=cache_type
        )
        cache = layout.allocate(64)
        q = torch.empty(6, heads, head_dim, dtype=dtype)
        facts = {**layout.facts, "heads": heads, "scale": head_dim**-0.5}
        is_usual = (cache_type, head_dim, heads) in usual
        for name, batch in (("decode", step(0)), ("prefill", step(1)))[: 1 + is_usual]:
            yield case(
                "paged_attention",
                f"{name} {cache_type} {head_dim}{'' if is_usual else f' of {heads}'}",
                facts,
                (q, batch, cache.k, cache.v),
                critical=name == "decode" and (cache_type, head_dim, heads) in CRITICAL_CACHES,
            )


def cache_layout(cache_type: str) -> KvLayout:
    return KvLayout(
        kv_heads=4, head_dim=HEAD_DIM, block_size=16, k_type=cache_type, v_type=cache_type
    )


def blank_weight(n: int, k: int, qtype: str) -> QuantTensor:
    """A weight whose bytes nobody reads."""
    kind = QUANT_TYPES[qtype]
    blocks = torch.empty(n, kind.row_bytes(k), dtype=torch.uint8)
    return QuantTensor("weight", kind, (n, k), blocks)
