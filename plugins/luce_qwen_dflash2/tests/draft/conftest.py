"""Tiny random drafts: written as files, loaded, and driven as an engine would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_qwen_dflash2.draft.backlog import Kept
from luce_qwen_dflash2.draft.config import ConvShape, DraftConfig, SelectorShape, TargetShape
from luce_qwen_dflash2.draft.draft import Draft
from luce_qwen_dflash2.draft.loaded import LoadedDraft
from luce_qwen_dflash2.draft.write import write_draft
from luce_qwen_dflash2.ops.draft_ops import DRAFT_OPS
from luce_qwen_dflash2.testing import inject
from torch import Tensor

from luce_core.device import Device
from luce_core.engine import DraftContext
from luce_core.ops.core_ops import core_registry
from luce_core.ops.registry import OpRegistry
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.quant_types import QuantTensor

TARGET = TargetShape(layers=6, width=64, vocab_size=320)
SECOND = DraftConfig(
    layers=3,
    width=64,
    heads=4,
    kv_heads=2,
    head_dim=32,
    context=4096,
    eps=2.0**-20,
    rope={"rotary_dim": 32, "interleaved": False, "theta": 1e7},
    block_size=8,
    mask_token=319,
    target_layers=(1, 3, 5),
    windows=(64, 64, 64),
    causal=(False, False, False),
    conv=ConvShape(taps=2, group=16),
    selector=SelectorShape(rank=32, top_k=16),
)
FIRST = replace(
    SECOND,
    block_size=16,
    windows=(64, 64, 0),
    causal=(True, True, False),
    conv=None,
    selector=None,
)


def random_weights(config: DraftConfig, seed: int = 0) -> dict[str, Tensor]:
    """By our names. Scaled so that the layers, the convolution and the selector all matter."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float | None = None) -> Tensor:
        return torch.randn(*shape, generator=random) * (shape[-1] ** -0.5 if std is None else std)

    def norm(size: int) -> Tensor:
        return 1.0 + normal(size, std=0.2)

    width, inner = config.width, 2 * config.width
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    weights = {
        "fc.weight": normal(width, len(config.target_layers) * width),
        "enc.output_norm.weight": norm(width),
        "output_norm.weight": norm(width),
    }
    if config.selector is not None:
        rank = config.selector.rank
        weights["selector_hidden.weight"] = normal(rank, width)
        for name in ("predecessor", "successor"):
            weights[f"selector_{name}.weight"] = normal(TARGET.vocab_size, rank, std=0.7)
    for index in range(config.layers):
        layer = {
            "attn_norm.weight": norm(width),
            "attn_q.weight": 2 * normal(q, width),
            "attn_k.weight": 2 * normal(kv, width),
            "attn_v.weight": 2 * normal(kv, width),
            "attn_output.weight": 2 * normal(width, q),
            "attn_q_norm.weight": norm(config.head_dim),
            "attn_k_norm.weight": norm(config.head_dim),
            "ffn_norm.weight": norm(width),
            "ffn_gate.weight": 2 * normal(inner, width),
            "ffn_up.weight": 2 * normal(inner, width),
            "ffn_down.weight": 2 * normal(width, inner),
        }
        if config.conv is not None:
            taps, groups = config.conv.taps, width // config.conv.group
            for part in ("attn", "ffn"):
                base = normal(2, taps, width, std=0.3)
                base[:, 0] += 1.0
                layer[f"{part}_conv_base"] = base
                layer[f"{part}_conv_proj.weight"] = 0.3 * normal(2 * taps * groups, width)
        weights |= {f"blk.{index}.{name}": weight for name, weight in layer.items()}
    return weights


@dataclass
class Loaded:
    """A draft with the target's two matrices, and what it has asked of them."""

    draft: Draft
    loaded: LoadedDraft
    embedding: Tensor  # [vocab, width]
    head: Tensor  # [vocab, width]
    modes: tuple[str, ...]
    seen_tokens: list[list[int]] = field(default_factory=list)  # of each pass
    seen_hidden: list[Tensor] = field(default_factory=list)  # [L, width] of each pass

    def inject(self, features: Tensor, *, slot: int = 0, start: int = 0) -> None:
        """All of `features` [T, F] as one step's rows of one slot."""
        self.step(features, [Kept(slot, 0, start, len(features))])

    def step(self, features: Tensor, kept: list[Kept]) -> None:
        inject(self.draft, features, kept)


Load = Callable[..., Loaded]


def registry_with_draft_ops() -> OpRegistry:
    registry = core_registry()
    for spec in DRAFT_OPS:
        registry.register_op(spec)
    return registry


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def second() -> DraftConfig:
    """A DFlash2 draft."""
    return SECOND


@pytest.fixture(scope="session")
def first() -> DraftConfig:
    """A DFlash draft: longer blocks, one layer that sees everything."""
    return FIRST


@pytest.fixture(scope="session")
def weights_of() -> Callable[..., dict[str, Tensor]]:
    return random_weights


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write(config, weights=None, name="draft.gguf", **of write_draft)."""

    def write_file(
        config: DraftConfig,
        weights: dict[str, Tensor] | None = None,
        *,
        name: str = "draft.gguf",
        **how: Any,
    ) -> Path:
        return write_draft(tmp_path / name, config, weights or random_weights(config), **how)

    return write_file


@pytest.fixture
def load(write: Callable[..., Path]) -> Load:
    """load(config or path, ...) -> Loaded."""

    def load_draft(
        source: DraftConfig | Path,
        *,
        slots: int = 3,
        max_context: int = 2048,
        block_size: int | None = None,
        ring_dtype: torch.dtype | None = None,
        registry: OpRegistry | None = None,
        target: TargetShape = TARGET,
        max_step_rows: int = 1400,
    ) -> Loaded:
        path = source if isinstance(source, Path) else write(source)
        device = Device("cpu")
        ops = (registry or registry_with_draft_ops()).binder(device, torch.float32)
        random = torch.Generator().manual_seed(99)
        shape = (target.vocab_size, target.width)
        table = torch.randn(shape, generator=random)
        matrix = 0.3 * torch.randn(shape, generator=random)
        embed = ops.embedding(QuantTensor.from_values("table", table, "F32"))
        head = ops.linear(QuantTensor.from_values("head", matrix, "F32"))
        tokens: list[list[int]] = []
        hidden: list[Tensor] = []

        def spied_embed(token_ids: Tensor) -> Any:
            if isinstance(token_ids, Tensor):
                tokens.append(token_ids.tolist())
            return embed(token_ids)

        def spied_head(h: Tensor) -> Any:
            if isinstance(h, Tensor):
                hidden.append(h.clone())
            return head(h)

        loaded = LoadedDraft.load(
            DraftContext(
                gguf=GgufFile.open(path, role="draft"), device=device, block_size=block_size
            ),
            target,
            ops,
            embed=spied_embed,
            head=spied_head,
            slots=slots,
            max_context=max_context,
            progress=lambda done, total, what: None,
            ring_dtype=ring_dtype,
        )
        draft = loaded.allocate(max_step_rows=max_step_rows)
        return Loaded(draft, loaded, table, matrix, ops.modes, tokens, hidden)

    return load_draft


@pytest.fixture(scope="session")
def features_of() -> Callable[[int, int], Tensor]:
    """features_of(tokens, seed=0) [T, F]: what a target would leave behind its layers."""

    def made(tokens: int, seed: int = 0) -> Tensor:
        width = len(SECOND.target_layers) * TARGET.width
        return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))

    return made
