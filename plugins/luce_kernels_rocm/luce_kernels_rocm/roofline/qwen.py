"""The models of Qwen's, verified by drafts or not, dense or of experts.

Qwen3.5-27B: its config's shapes, weights of the types that a Q4_K_M file mixes, in the simple form
that the down projection and the head are Q6_K and everything else Q4_K. Qwen3.8-27B has the same
shapes: here its steps verify blocks, and leave features for the draft. Qwen3.5-35B-A3B: its
config's shapes, which are the defaults of transformers' Qwen3_5MoeTextConfig; matrices with scales,
as in NVFP4 files, but of MXFP4, as no kernel here multiplies NVFP4. Projections to one value for
each head or row, for the rates of the delta rule and the gates of shared experts, are left out.
"""

from __future__ import annotations

from dataclasses import replace

from luce_core.ops.kv_layout import KvLayout
from luce_kernels_rocm.roofline.shapes import (
    DeltaShape,
    ExpertProduct,
    ExpertsShape,
    ModelShape,
    Product,
    Step,
)

_VERIFIED = (
    Step("8 verify rows behind 4096 tokens", 1, 8, 4096, False, logits=8),
    Step("8 slots of 8 verify rows behind 4096 tokens", 8, 8, 4096, False, logits=8),
)


def qwen() -> ModelShape:
    width, ff, layers, full, linear = 5120, 17408, 64, 16, 48
    return ModelShape(
        name="Qwen3.5-27B",
        width=width,
        vocab=248_320,
        embedding="Q4_K",
        products=(
            Product("delta qkv", linear, "Q4_K", 10240, width),
            Product("delta gate", linear, "Q4_K", 6144, width),
            Product("delta out", linear, "Q4_K", width, 6144),
            Product("attention q and gate", full, "Q4_K", 2 * 24 * 256, width),
            Product("attention k, v", 2 * full, "Q4_K", 4 * 256, width),
            Product("attention out", full, "Q4_K", width, 24 * 256),
            Product("gate, up", 2 * layers, "Q4_K", ff, width),
            Product("down", layers, "Q6_K", width, ff),
            Product("head", 1, "Q6_K", 248_320, width, is_head=True),
        ),
        norms=2 * layers + 1,
        adds=2 * layers,
        swiglus=layers,
        ff=ff,
        attentions=full,
        heads=24,
        head_norms=True,
        gated_heads=True,
        rotary_dim=64,
        layout=KvLayout(kv_heads=4, head_dim=256, block_size=16),
        delta=DeltaShape(count=linear, key_heads=16, value_heads=48, key_dim=128, value_dim=128),
    )


def qwen_verified() -> ModelShape:
    name = "Qwen3.8-27B with its DFlash2 draft"
    return replace(qwen(), name=name, features=5, steps=_VERIFIED)


def qwen_moe() -> ModelShape:
    width, inner, layers, full, linear, vocab = 2048, 512, 40, 10, 30, 248_320
    experts = (256, 8)

    def scaled(name: str, count: int, n: int, k: int) -> Product:
        return Product(name, count, "MXFP4", n, k, scaled=True)

    def of_experts(name: str, count: int, n: int, k: int, *, own: bool) -> ExpertProduct:
        return ExpertProduct(name, count, "MXFP4", n, k, *experts, own_inputs=own, scaled=True)

    return ModelShape(
        name="Qwen3.5-35B-A3B, matrices with scales",
        width=width,
        vocab=vocab,
        embedding="BF16",
        products=(
            scaled("delta qkv", linear, 8192, width),
            scaled("delta gate", linear, 4096, width),
            scaled("delta out", linear, width, 4096),
            scaled("attention q and gate", full, 2 * 16 * 256, width),
            scaled("attention k, v", 2 * full, 2 * 256, width),
            scaled("attention out", full, width, 16 * 256),
            Product("router", layers, "F32", experts[0], width),
            scaled("shared gate, up", 2 * layers, inner, width),
            scaled("shared down", layers, width, inner),
            Product("head", 1, "BF16", vocab, width, is_head=True),
        ),
        norms=2 * layers + 1,
        adds=3 * layers,
        swiglus=layers,
        ff=inner,
        attentions=full,
        heads=16,
        head_norms=True,
        gated_heads=True,
        rotary_dim=64,
        layout=KvLayout(kv_heads=2, head_dim=256, block_size=16),
        delta=DeltaShape(count=linear, key_heads=16, value_heads=32, key_dim=128, value_dim=128),
        experts=ExpertsShape(
            count=layers,
            by_token=0,
            experts=experts[0],
            top_k=experts[1],
            inner=inner,
            products=(
                of_experts("gate, up", 2 * layers, inner, width, own=False),
                of_experts("down", layers, width, inner, own=True),
            ),
            shared_gate=True,
        ),
    )
