"""Makes and loads models for the tests, and watches their logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from luce_deepseek_v4.engine import DeepSeekEngine
from luce_deepseek_v4.ops.model_ops import MODEL_OPS
from luce_deepseek_v4.settings import DeepSeekSettings
from luce_deepseek_v4.testing import write_transformers_model
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
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
        """A random model of all three kinds of layer, with everything off its initial value."""
        sizes: dict[str, object] = {
            "vocab_size": 320,
            "hidden_size": 128,
            "moe_intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "head_dim": 64,
            "q_lora_rank": 64,
            "num_experts_per_tok": 2,
            "n_routed_experts": 8,
            "sliding_window": 16,
            "o_groups": 2,
            "o_lora_rank": 32,
            "index_n_heads": 64,
            "index_head_dim": 64,
            "index_topk": 8,
            "partial_rotary_factor": 0.25,
            "compress_ratios": [0, 4, 128, 4],
            "num_hash_layers": 1,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 16.0,
                "original_max_position_embeddings": 256,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        }
        torch.manual_seed(seed)
        config = transformers.DeepseekV4Config(**{**sizes, **more})
        model = transformers.DeepseekV4ForCausalLM(config).float().eval()
        with torch.no_grad():
            for name, weight in [*model.named_parameters(), *model.named_buffers()]:
                _shift(name, weight, config)
        return model

    return make


def _shift(name: str, weight: Tensor, config: transformers.DeepseekV4Config) -> None:
    """Each part matters: norms off one, biases and sinks off zero, matrices of unit gain."""
    if name.endswith("tid2eid"):
        experts, chosen = config.n_routed_experts, config.num_experts_per_tok
        rows = [torch.randperm(experts)[:chosen] for _ in range(len(weight))]
        weight.copy_(torch.stack(rows))
    elif "inv_freq" in name:
        return
    elif "norm" in name:
        weight.add_(0.3 * torch.randn_like(weight))
    elif name.endswith(("sinks", "position_bias", "e_score_correction_bias", "base")):
        weight.add_(0.5 * torch.randn_like(weight))
    elif name.endswith("scale"):
        weight.add_(0.2 * torch.randn_like(weight))
    elif "embed" not in name:
        weight.normal_(0.0, weight.shape[-1] ** -0.5)


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


Load = Callable[..., DeepSeekEngine]


def context_for(
    path: Path,
    *,
    slots: int = 6,
    cache: str = "f32",
    max_context: int | None = None,
    registry: OpRegistry | None = None,
    **settings: object,
) -> LoadContext:
    device = Device("cpu")
    return LoadContext(
        gguf=GgufFile.open(path),
        device=device,
        ops=(registry or registry_of_ops()).binder(device, torch.float32),
        limits=EngineLimits(
            max_slots=slots, max_context=max_context, cache_type_k=cache, cache_type_v=cache
        ),
        sampler=lambda vocab_size: Sampler(slots, vocab_size),
        settings=DeepSeekSettings(**settings),
        progress=lambda done, total, what: None,
    )


@pytest.fixture(scope="session")
def context() -> Callable[..., LoadContext]:
    return context_for


@pytest.fixture(scope="session")
def load() -> Load:
    def load_engine(path: Path, *, blocks: int = 32, **more: object) -> DeepSeekEngine:
        engine = DeepSeekEngine.load(context_for(path, **more))
        engine.allocate(blocks)
        return engine

    return load_engine


def registry_of_ops() -> OpRegistry:
    registry = core_registry()
    for spec in MODEL_OPS:
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
        registry.register_kernel(
            "quant_matmul",
            _matmul_by_row,
            device="cpu",
            dtypes=(torch.float32,),
            provider="by_row",
            row_invariant=True,
            split_invariant=True,
            prepare=transposed_weight,
        )
        return registry

    return make


def _matmul_by_row(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, **facts) -> None:
    for row in range(len(x)):
        out[row] = (x[row].clone()[None] @ weight)[0]


class Watch:
    """Keeps the logits of every row that an engine computes, by request and position."""

    def __init__(self, engine: DeepSeekEngine) -> None:
        self.logits: dict[int, dict[int, Tensor]] = {}
        self.steps: list[list[int]] = []
        self._owners: dict[int, Request] = {}
        self._run = engine._run
        self._admit = engine.admit
        engine._run, engine.admit = self._spy, self._note

    def _note(self, slot, request) -> None:
        self._owners[slot.id] = request
        self._admit(slot, request)

    def _spy(self, batch: PackedBatch) -> tuple[Tensor, ...]:
        """Runs the batch with logits on all of its rows, and returns those that it asks for."""
        everything = torch.arange(batch.rows, dtype=torch.int32)
        logits, greedy = self._run(
            replace(batch, logit_rows=everything, logits=batch.rows, logits_read=None)
        )
        starts, positions = batch.cu_seqlens.tolist(), batch.positions.tolist()
        self.steps.append(batch.cu_seqlens.diff().tolist())
        for segment, slot in enumerate(batch.slot_ids.tolist()):
            seen = self.logits.setdefault(self._owners[slot].id, {})
            for row in range(starts[segment], starts[segment + 1]):
                seen[positions[row]] = logits[row].clone()
        rows = batch.logit_rows.long()
        return logits[rows], greedy[rows]

    def compare(self, request: Request, oracle: transformers.PreTrainedModel) -> float:
        """The largest difference from the oracle's logits over all tokens, of the prompt too; at
        every position the best token must be the same."""
        ids = [*request.prompt, *request.generated][:-1]
        seen = self.logits[request.id]
        assert sorted(seen) == list(range(len(ids)))
        with torch.no_grad():
            expected = oracle(torch.tensor([ids])).logits[0]
        ours = torch.stack([seen[row] for row in range(len(ids))])
        assert torch.equal(ours.argmax(-1), expected.argmax(-1))
        return float((ours - expected).abs().max())


@pytest.fixture(scope="session")
def watch() -> type[Watch]:
    return Watch
