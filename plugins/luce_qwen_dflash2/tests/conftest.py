"""Makes and loads models for the tests, and watches their logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from luce_qwen_dflash2.draft.config import MAX_BLOCK, ConvShape, DraftConfig, SelectorShape
from luce_qwen_dflash2.draft.synthetic import write_random_draft
from luce_qwen_dflash2.drafting import DraftSource
from luce_qwen_dflash2.engine import QwenEngine
from luce_qwen_dflash2.ops.draft_ops import DRAFT_OPS
from luce_qwen_dflash2.ops.target_ops import TARGET_OPS
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid
from luce_qwen_dflash2.testing import write_transformers_model
from luce_qwen_dflash2.widths import FixedWidths, Widths
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.device import Device
from luce_core.engine import DraftContext, EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import decode_rows
from luce_core.ops.reference.quant_matmul import transposed_weight
from luce_core.ops.registry import OpRegistry
from luce_core.request import Request
from luce_core.sampling.sampler import Sampler
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Parallel test processes share two cores; more threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def write_model() -> Callable[..., Path]:
    return write_transformers_model


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., transformers.PreTrainedModel]:
    def make(seed: int = 5, **more: object) -> transformers.PreTrainedModel:
        """A random model with everything off its initial value, so that each part matters."""
        sizes: dict[str, object] = {
            "vocab_size": 320,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.25,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            },
        }
        torch.manual_seed(seed)
        if "num_experts" in more:
            moe = transformers.Qwen3_5MoeTextConfig(**{**sizes, **more})
            model = transformers.Qwen3_5MoeForCausalLM(moe).float().eval()
        else:
            dense = transformers.Qwen3_5TextConfig(**{**sizes, **more})
            model = transformers.Qwen3_5ForCausalLM(dense).float().eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name or name.endswith(("A_log", "dt_bias")):
                    weight.add_(0.3 * torch.randn_like(weight))
                elif "conv1d" not in name:
                    weight.mul_(4)
        return model

    return make


def rewritten_file(source: Path, target: Path, *, change=None, metadata=None) -> Path:
    """A copy of a model with some tensors and keys replaced; a key of None goes."""
    with GgufFile.open(source) as gguf:
        values = {**gguf.metadata.values, **(metadata or {})}
        values = {key: value for key, value in values.items() if value is not None}
        tensors = dict(gguf.tensors)
        if change is not None:
            change(tensors)
        return write_gguf(target, gguf.architecture, values, tensors)


@pytest.fixture(scope="session")
def rewritten() -> Callable[..., Path]:
    return rewritten_file


TINY = SyntheticHybrid(seed=4)
TINY_DRAFT = DraftConfig(
    layers=2,
    width=TINY.width,
    heads=4,
    kv_heads=2,
    head_dim=32,
    context=4096,
    eps=1e-6,
    rope={"rotary_dim": 32, "interleaved": False, "theta": 1e7},
    block_size=8,
    mask_token=319,
    target_layers=(0, 2, 3),
    windows=(64, 64),
    causal=(False, False),
    conv=ConvShape(taps=2, group=16),
    selector=SelectorShape(rank=32, top_k=16),
)


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory) -> tuple[Path, Path]:
    """A hybrid model and a DFlash2 draft for it, with random weights."""
    folder = tmp_path_factory.mktemp("pair")
    draft = write_random_draft(
        folder / "draft.gguf", TINY_DRAFT, vocab_size=TINY.vocab, inner=96, qtype="F32"
    )
    return write_hybrid(folder / "tiny.gguf", TINY), draft


@pytest.fixture(scope="session")
def write_tiny_draft() -> Callable[..., Path]:
    def write(path: Path, **changes: object) -> Path:
        config = replace(TINY_DRAFT, **changes)
        return write_random_draft(path, config, vocab_size=TINY.vocab, inner=96, qtype="F32")

    return write


Load = Callable[..., QwenEngine]


def context_for(
    path: Path,
    *,
    slots: int = 6,
    cache: str = "f32",
    max_context: int | None = None,
    registry: OpRegistry | None = None,
    threads: int = 0,
    draft: Path | None = None,
    block_size: int | None = None,
    min_acceptance: float | None = None,
) -> LoadContext:
    device = Device("cpu")
    beside = None
    if draft is not None:
        beside = DraftContext(
            gguf=GgufFile.open(draft, role="draft"),
            device=device,
            block_size=block_size,
            min_acceptance=min_acceptance,
        )
    return LoadContext(
        gguf=GgufFile.open(path),
        device=device,
        ops=(registry or registry_of_ops()).binder(device, torch.float32, threads=threads),
        limits=EngineLimits(
            max_slots=slots, max_context=max_context, cache_type_k=cache, cache_type_v=cache
        ),
        sampler=lambda vocab_size: Sampler(slots, vocab_size),
        settings=None,
        progress=lambda done, total, what: None,
        draft=beside,
    )


@pytest.fixture(scope="session")
def context() -> Callable[..., LoadContext]:
    return context_for


@pytest.fixture(scope="session")
def load() -> Load:
    def load_engine(
        path: Path,
        *,
        blocks: int = 64,
        drafts: DraftSource | None = None,
        max_draft: int = 0,
        widths: Widths | None = None,
        **more: object,
    ) -> QwenEngine:
        """With a `draft` and nothing else said, every block is as wide as the draft's."""
        if more.get("draft") is not None and widths is None:
            widths = FixedWidths(MAX_BLOCK)
        context = context_for(path, **more)
        engine = QwenEngine.load(context, drafts=drafts, max_draft=max_draft, widths=widths)
        engine.allocate(blocks)
        return engine

    return load_engine


def registry_of_ops() -> OpRegistry:
    registry = core_registry()
    for spec in (*TARGET_OPS, *DRAFT_OPS):
        registry.register_op(spec)
    return registry


@pytest.fixture(scope="session")
def ops_registry() -> Callable[[], OpRegistry]:
    return registry_of_ops


@pytest.fixture(scope="session")
def row_by_row() -> Callable[[], OpRegistry]:
    """Ops whose bits depend neither on company nor on chunking: products are made row by row."""

    def make() -> OpRegistry:
        registry = registry_of_ops()
        for op, function in (("quant_matmul", _matmul_by_row), ("paged_attention", _attend_by_row)):
            registry.register_kernel(
                op,
                function,
                device="cpu",
                dtypes=(torch.float32,),
                provider="by_row",
                row_invariant=True,
                split_invariant=True,
                **({"prepare": transposed_weight} if op == "quant_matmul" else {}),
            )
        return registry

    return make


@pytest.fixture(scope="session")
def native_ops() -> Callable[[], OpRegistry]:
    """The kernels that serve here, recorded; a test is skipped where none are compiled."""
    kernels = pytest.importorskip("luce_kernels_cpu")
    unavailable = pytest.importorskip("luce_kernels_cpu.library").KernelsUnavailable

    def make() -> OpRegistry:
        registry = registry_of_ops()
        try:
            kernels.luce_register_kernels(registry.register_kernel)
        except unavailable as error:
            pytest.skip(str(error))
        kernels.luce_register_recorders(registry.register_recorder)
        return registry

    return make


def _matmul_by_row(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, **facts) -> None:
    for row in range(len(x)):
        out[row] = (x[row].clone()[None] @ weight)[0]
        if bias is not None:
            out[row] += bias


def _attend_by_row(
    q: Tensor, batch: PackedBatch, k_cache: Tensor, v_cache: Tensor, out: Tensor, **facts
) -> None:
    starts = batch.cu_seqlens.tolist()
    group = facts["heads"] // facts["kv_heads"]
    for segment in range(batch.segments):
        blocks = batch.block_tables[segment]
        for row in range(starts[segment], starts[segment + 1]):
            keys = int(batch.positions[row]) + 1
            used = blocks[: -(-keys // facts["block_size"])]
            k = decode_rows(k_cache[used], facts["k_type"]).flatten(0, 1)[:keys]
            v = decode_rows(v_cache[used], facts["v_type"]).flatten(0, 1)[:keys]
            query = q[row].view(facts["kv_heads"], group, -1) * facts["scale"]
            weights = (query.clone() @ k.permute(1, 2, 0).contiguous()).softmax(-1)
            out[row] = (weights @ v.transpose(0, 1).contiguous()).flatten(0, 1)


class Watch:
    """Keeps the logits of every row that an engine computes, by request and position."""

    def __init__(self, engine: QwenEngine) -> None:
        self.logits: dict[int, dict[int, Tensor]] = {}
        self._engine = engine
        self._run = engine._run
        engine._run = self._spy

    def _spy(self, batch: PackedBatch) -> tuple[Tensor, ...]:
        results = self._run(batch)
        logits = results[0]
        starts = batch.cu_logits.tolist()
        for segment, slot in enumerate(batch.slot_ids.tolist()):
            seen = self.logits.setdefault(self._engine._requests[slot].id, {})
            for index in range(starts[segment], starts[segment + 1]):
                position = int(batch.positions[int(batch.logit_rows[index])])
                seen[position] = logits[index].clone()
        return results

    def worst_error(self, request: Request, oracle: transformers.PreTrainedModel) -> float:
        """The largest difference from the oracle's logits over all tokens that were generated."""
        ids = [*request.prompt, *request.generated]
        with torch.no_grad():
            expected = oracle(torch.tensor([ids])).logits[0]
        rows = range(len(request.prompt) - 1, len(ids) - 1)
        seen = self.logits[request.id]
        ours = torch.stack([seen[row] for row in rows])
        return float((ours - expected[rows.start : rows.stop]).abs().max())


@pytest.fixture(scope="session")
def watch() -> type[Watch]:
    return Watch
