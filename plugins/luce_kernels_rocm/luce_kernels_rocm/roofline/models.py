"""The models whose steps are shown.

SmolLM2-135M: the Q4_1 file, whose tied head is Q8_0. The DFlash2 draft of Qwen3.8-27B: its config's
shapes, weights mixed as its target's are, and the target's embedding and head; a step takes in the
features of a whole verified block, then makes the next block. The same without what DFlash2 adds
shows what a DFlash draft costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from luce_core.errors import ConfigError
from luce_core.ops.kv_layout import KvLayout
from luce_kernels_rocm.roofline.deepseek import deepseek_v4_flash
from luce_kernels_rocm.roofline.qwen import qwen, qwen_moe, qwen_verified
from luce_kernels_rocm.roofline.shapes import DraftShape, ModelShape, Product, Step


def _smollm2() -> ModelShape:
    width, ff, layers = 576, 1536, 30
    return ModelShape(
        name="SmolLM2-135M",
        width=width,
        vocab=49_152,
        embedding="Q8_0",
        products=(
            Product("attention q, out", 2 * layers, "Q4_1", width, width),
            Product("attention k, v", 2 * layers, "Q4_1", 192, width),
            Product("gate, up", 2 * layers, "Q4_1", ff, width),
            Product("down", layers, "Q4_1", width, ff),
            Product("head", 1, "Q8_0", 49_152, width, is_head=True),
        ),
        norms=2 * layers + 1,
        adds=2 * layers,
        swiglus=layers,
        ff=ff,
        attentions=layers,
        heads=9,
        head_norms=False,
        rotary_dim=64,
        layout=KvLayout(kv_heads=3, head_dim=64, block_size=16),
    )


_BLOCKS = (
    Step("1 block of 8 rows", 1, 8, 4096, False, logits=7),
    Step("8 blocks of 8 rows", 8, 8, 4096, False, logits=7),
)


def _dflash2() -> ModelShape:
    width, ff, layers, vocab, taps, group, rank = 5120, 17408, 5, 248_320, 2, 16, 256
    return ModelShape(
        name="DFlash2 draft of Qwen3.8-27B",
        width=width,
        vocab=vocab,
        embedding="Q4_K",
        products=(
            Product("attention q", layers, "Q4_K", 32 * 128, width),
            Product("k, v of block and features", 4 * layers, "Q4_K", 8 * 128, width),
            Product("attention out", layers, "Q4_K", width, 32 * 128),
            Product("gate, up", 2 * layers, "Q4_K", ff, width),
            Product("down", layers, "Q6_K", width, ff),
            Product("features", 1, "Q4_K", width, 5 * width),
            Product("convolutions", 2 * layers, "Q4_K", 2 * taps * width // group, width),
            Product("selector", 1, "Q4_K", rank, width, beside_head=True),
            Product("head", 1, "Q6_K", vocab, width, is_head=True),
        ),
        norms=2 * layers + 2,
        adds=2 * layers,
        swiglus=layers,
        ff=ff,
        attentions=layers,
        heads=32,
        head_norms=True,
        rotary_dim=128,
        layout=KvLayout(kv_heads=8, head_dim=128, block_size=16),
        draft=DraftShape(
            window=2048,
            features=5 * width,
            convolutions=4 * layers,
            taps=taps,
            group=group,
            top_k=16,
            rank=rank,
            codebook="Q4_K",
        ),
        steps=_BLOCKS,
    )


def _dflash() -> ModelShape:
    whole = _dflash2()
    assert whole.draft is not None
    of_dflash2 = ("convolutions", "selector")
    return replace(
        whole,
        name="The same draft without convolutions and selector",
        products=tuple(each for each in whole.products if each.name not in of_dflash2),
        draft=replace(whole.draft, convolutions=0, top_k=0),
    )


MODELS: Mapping[str, ModelShape] = MappingProxyType(
    {
        "qwen3.5-27b": qwen(),
        "smollm2-135m": _smollm2(),
        "qwen3.8-27b": qwen_verified(),
        "qwen3.8-27b-dflash2": _dflash2(),
        "dflash": _dflash(),
        "qwen3.5-35b-a3b": qwen_moe(),
        "deepseek-v4-flash": deepseek_v4_flash(),
    }
)


def models_named(name: str | None) -> tuple[ModelShape, ...]:
    """One, or all; ConfigError lists the known ones."""
    if name is None:
        return tuple(MODELS.values())
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}: shapes are known of {', '.join(MODELS)}")
    return (MODELS[name],)
