"""A block draft's passes are replayed, with the bits of its ops one by one; its noise is the
sampler's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_kernels_cpu import luce_register_kernels, luce_register_recorders
from luce_kernels_cpu.native_ops import NATIVE_OPS
from torch import Tensor

from luce_core.device import Device
from luce_core.engine import DraftContext
from luce_core.ops.cases import CaseMaker
from luce_core.ops.core_ops import CORE_OPS, core_registry
from luce_core.ops.registry import OpRegistry
from luce_core.sampling.noise import GumbelNoise
from luce_core.sampling.sampler import DraftNoise
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.quant_types import QuantTensor

plugin = pytest.importorskip("luce_qwen_dflash2")
shapes = pytest.importorskip("luce_qwen_dflash2.draft.config")
drafts = pytest.importorskip("luce_qwen_dflash2.draft.draft")
loaded = pytest.importorskip("luce_qwen_dflash2.draft.loaded")
testing = pytest.importorskip("luce_qwen_dflash2.testing")
writing = pytest.importorskip("luce_qwen_dflash2.draft.write")
blocks = pytest.importorskip("luce_qwen_dflash2.ops.case_blocks")

SLOTS = 3
TARGET = shapes.TargetShape(layers=6, width=64, vocab_size=320)
SECOND = shapes.DraftConfig(
    layers=2,
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
    windows=(64, 64),
    causal=(False, False),
    conv=shapes.ConvShape(taps=2, group=16),
    selector=shapes.SelectorShape(rank=32, top_k=16),
)
FIRST = replace(SECOND, windows=(64, 0), causal=(True, False), conv=None, selector=None)
CONFIGS = pytest.mark.parametrize("config", [FIRST, SECOND], ids=["first", "second"])
NOISY = DraftNoise(0.7, tuple(range(1 << 40, (1 << 40) + 7)))


def random_weights(config: Any) -> dict[str, Tensor]:
    """By the plugin's names."""
    random = torch.Generator().manual_seed(3)
    width, inner, dim = config.width, 2 * config.width, config.head_dim
    q, kv = config.heads * dim, config.kv_heads * dim
    sizes: dict[str, tuple[int, ...]] = {
        "fc": (width, len(config.target_layers) * width),
        "selector_hidden": (32, width),
        "selector_predecessor": (TARGET.vocab_size, 32),
        "selector_successor": (TARGET.vocab_size, 32),
        "attn_q": (q, width),
        "attn_k": (kv, width),
        "attn_v": (kv, width),
        "attn_output": (width, q),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
        "attn_conv_base": (2, 2, width),
        "ffn_conv_base": (2, 2, width),
        "attn_conv_proj": (2 * 2 * width // 16, width),
        "ffn_conv_proj": (2 * 2 * width // 16, width),
        "attn_q_norm": (dim,),
        "attn_k_norm": (dim,),
    }
    found = {}
    for name in writing.tensor_names(config):
        role = name.split(".", 2)[-1] if name.startswith("blk.") else name
        shape = sizes.get(role.removesuffix(".weight"), (width,))
        values = torch.randn(shape, generator=random)
        found[name] = 1.0 + 0.2 * values if len(shape) == 1 else 1.5 * values * shape[-1] ** -0.5
    return found


Load = Callable[..., tuple[Any, tuple[str, ...]]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A draft of random weights on native or reference kernels, and how its passes run."""

    def load_draft(config: Any, *, native: bool = True, recorded: bool = True, **how: Any) -> Any:
        path = writing.write_draft(tmp_path / "draft.gguf", config, random_weights(config))
        registry = core_registry()
        plugin.luce_register_ops(registry.register_op)
        if native:
            luce_register_kernels(registry.register_kernel)
        if recorded:
            luce_register_recorders(registry.register_recorder)
        ops = registry.binder(Device("cpu"), torch.float32, threads=2)
        table = torch.randn(320, 64, generator=torch.Generator().manual_seed(9))
        embed = ops.embedding(QuantTensor.from_values("table", table, "F32"))
        head = ops.linear(QuantTensor.from_values("head", 0.3 * table.flip(0), "F32"))
        made = loaded.LoadedDraft.load(
            DraftContext(gguf=GgufFile.open(path, role="draft"), device=Device("cpu")),
            TARGET,
            ops,
            embed=embed,
            head=head,
            slots=SLOTS,
            max_context=512,
            progress=lambda done, total, what: None,
            **how,
        )
        return made.allocate(max_step_rows=128), ops.modes

    return load_draft


def drive(draft: Any) -> list[list[int]]:
    """Blocks of three slots that grow unevenly past their windows."""
    random = torch.Generator().manual_seed(4)
    lengths, found = [0] * SLOTS, []
    for counts in ((40, 9, 70), (1, 8, 3), (30, 1, 60), (2, 64, 1)):
        features = torch.randn(sum(counts), 3 * 64, generator=random)
        first, kept = 0, []
        for slot, count in enumerate(counts):
            kept.append(drafts.Kept(slot, first, lengths[slot], count))
            first, lengths[slot] = first + count, lengths[slot] + count
        testing.inject(draft, features, kept)
        anchors = [
            drafts.Anchor(0, 7, lengths[0], 7),
            drafts.Anchor(1, 300, lengths[1], 3, NOISY),
            drafts.Anchor(2, 5, lengths[2], 7, NOISY),
        ]
        found += draft.propose(anchors)
    return found


@CONFIGS
@pytest.mark.parametrize("ring_dtype", [torch.float32, torch.float16])
def test_both_passes_are_replayed_with_the_bits_of_the_ops(
    config: Any, ring_dtype: torch.dtype, load: Load
) -> None:
    replayed, modes = load(config, ring_dtype=ring_dtype)
    one_by_one, _ = load(config, recorded=False, ring_dtype=ring_dtype)
    assert modes == ("replayed by luce_kernels_cpu",) * 2
    assert drive(replayed) == drive(one_by_one)
    for mine, theirs in zip(replayed._rings.layers, one_by_one._rings.layers, strict=True):
        assert torch.equal(mine.k[:SLOTS], theirs.k[:SLOTS])
        assert torch.equal(mine.v[:SLOTS], theirs.v[:SLOTS])


@CONFIGS
def test_drafts_are_those_of_the_references(config: Any, load: Load) -> None:
    native, _ = load(config)
    reference, modes = load(config, native=False)
    assert all(mode.startswith("op by op: luce_kernels_cpu: ") for mode in modes)
    assert drive(native) == drive(reference)


def test_the_noise_is_the_samplers() -> None:
    """With equal logits the noise decides alone: over many keys, and over large vocabularies."""
    registry = OpRegistry()
    plugin.luce_register_ops(registry.register_op)
    luce_register_kernels(registry.register_kernel)
    draw = registry.binder(Device("cpu"), torch.float32).bind("draft_draw")
    for vocab, rows in ((2, 64), (1001, 64), (150_000, 8)):
        keys = CaseMaker("cpu", torch.float32, seed=vocab).integers(0, 1 << 30, 2, rows).long()
        keys = (keys[0] << 34) - keys[1]
        batch = blocks.block_batch([(0, rows + 1)], torch.device("cpu"))
        temperatures = torch.tensor([1.0, 0.0])
        chosen = draw(torch.zeros(rows, vocab), batch, temperatures, keys.expand(2, -1).clone())
        expected = GumbelNoise(vocab).rows(keys).argmax(1)
        assert torch.equal(chosen.long(), expected)


@pytest.mark.parametrize("temperature", [0.05, 0.7, 2.5])
def test_tokens_that_cannot_win_are_passed_over_and_no_others(temperature: float) -> None:
    """Against the scores of all tokens, from peaked to flat."""
    registry = OpRegistry()
    plugin.luce_register_ops(registry.register_op)
    reference = registry.binder(Device("cpu"), torch.float32).bind("draft_draw")
    luce_register_kernels(registry.register_kernel)
    native = registry.binder(Device("cpu"), torch.float32).bind("draft_draw")
    maker = CaseMaker("cpu", torch.float32)
    rows = 24
    for std in (0.0, 1.0, 4.0):
        logits = maker.normal(rows, 3001, std=std)
        keys = maker.integers(0, 1 << 30, 2, rows).long() << 31
        batch = blocks.block_batch([(0, rows + 1)], torch.device("cpu"))
        args = (logits, batch, torch.tensor([temperature, 0.0]), keys)
        assert torch.equal(native(*args), reference(*args))


@pytest.mark.parametrize("op", ["draft_draw", "candidate_select"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_with_infinities_and_nan_choose_as_the_references_do(
    op: str, temperature: float
) -> None:
    registry = OpRegistry()
    plugin.luce_register_ops(registry.register_op)
    maker = CaseMaker("cpu", torch.float32)
    logits = maker.normal(9, 70)
    logits[0, 13] = float("nan")
    logits[1, 20:] = float("-inf")
    logits[2, 3:] = float("-inf")
    logits[3] = float("-inf")
    logits[4, 40] = float("inf")
    logits[5, :60] = float("nan")
    logits[6, 30:34] = float("nan")
    logits[6, 50:] = 5.0
    logits[7] = logits[7].round()
    batch = blocks.block_batch([(0, 2)] * 9, torch.device("cpu"), token_ids=[5, 0] * 9)
    noise = (torch.full((10,), temperature), maker.integers(0, 1 << 30, 10, 1).long() << 30)
    books = tuple(maker.weight(70, 64, "F32") for _ in range(2))
    facts = {"top_k": 8, "rank": 64, "predecessor_type": "F32", "successor_type": "F32"}

    def choose() -> Tensor:
        ops = registry.binder(Device("cpu"), torch.float32)
        if op == "draft_draw":
            return ops.bind(op)(logits, batch, *noise)
        select = ops.bind(op, weights=books, **facts)
        return select(logits, maker_g, batch, *noise)

    maker_g = maker.normal(9, 64, std=0.1)
    expected = choose()
    luce_register_kernels(registry.register_kernel)
    assert torch.equal(choose(), expected)


def test_kernels_of_ops_that_are_not_installed_sleep() -> None:
    registry = core_registry()
    luce_register_kernels(registry.register_kernel)
    core_ops = {spec.name for spec in CORE_OPS}
    assert set(registry.dormant) == {op.name for op in NATIVE_OPS} - core_ops
