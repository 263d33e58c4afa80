"""Loads models for the tests, writes transformers models as GGUF, and watches logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import transformers
from luce_qwen_dflash2.engine import DraftSource, QwenEngine
from luce_qwen_dflash2.ops.target_ops import TARGET_OPS
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import decode_rows
from luce_core.ops.reference.quant_matmul import transposed_weight
from luce_core.ops.registry import OpRegistry
from luce_core.request import Request
from luce_core.sampling.sampler import Sampler
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.quant_types import QuantTensor

_ROOT_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Parallel test processes share two cores; more threads would only wait for each other."""
    torch.set_num_threads(1)


def gguf_name(name: str) -> str:
    if name in _ROOT_NAMES:
        return _ROOT_NAMES[name]
    _, _, index, rest = name.split(".", 3)
    return f"blk.{index}.{_LAYER_NAMES[rest]}"


class Conversion:
    """What llama.cpp's converter does to the weights of one model, and back.

    Value heads lie as [key heads, values of each, ...] in transformers' matrices and as [values of
    each, key heads, ...] in the file.
    """

    def __init__(self, config: transformers.Qwen3_5TextConfig) -> None:
        self._keys = config.linear_num_key_heads
        self._each = config.linear_num_value_heads // self._keys
        self._dim = config.linear_value_head_dim
        self._qk = 2 * self._keys * config.linear_key_head_dim

    def to_file(self, name: str, value: Tensor) -> Tensor:
        value = self._placed(gguf_name(name), value, back=False)
        if name.endswith("A_log"):
            return -value.exp()
        is_norm = name.endswith("norm.weight") and "linear_attn" not in name
        return value + 1 if is_norm else value

    def matrix_from_file(self, name: str, value: Tensor) -> Tensor:
        """For matrices, whose values are only moved."""
        return self._placed(gguf_name(name), value, back=True)

    def _placed(self, name: str, value: Tensor, *, back: bool) -> Tensor:
        role = name.split(".", 2)[-1]
        if role in ("attn_qkv.weight", "ssm_conv1d.weight"):
            value = value.squeeze(1) if role == "ssm_conv1d.weight" else value
            head, tail = value[: self._qk], value[self._qk :]
            return torch.cat((head, self._tiled(tail, self._dim, back)))
        if role == "attn_gate.weight":
            return self._tiled(value, self._dim, back)
        if role in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"):
            return self._tiled(value, 1, back)
        if role == "ssm_out.weight":
            return self._tiled(value.t(), self._dim, back).t().contiguous()
        return value

    def _tiled(self, value: Tensor, dim: int, back: bool) -> Tensor:
        order = (self._each, self._keys) if back else (self._keys, self._each)
        heads = value.reshape(*order, dim, *value.shape[1:])
        return heads.transpose(0, 1).reshape(value.shape).contiguous()


def metadata_of(config: transformers.Qwen3_5TextConfig, arch: str = "qwen35") -> dict[str, object]:
    rope = config.rope_parameters
    kinds = config.layer_types
    values: dict[str, object] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(config.head_dim * rope["partial_rotary_factor"]),
        "rope.dimension_sections": [*rope["mrope_section"], 0],
        "full_attention_interval": kinds.index("full_attention") + 1,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
    }
    return {f"{arch}.{key}": value for key, value in values.items()}


WriteModel = Callable[..., Path]


@pytest.fixture(scope="session")
def write_model() -> WriteModel:
    def write(
        path: Path,
        model: transformers.PreTrainedModel,
        *,
        quantised: Mapping[str, Callable[[int, int], QuantTensor]] | None = None,
        change: Callable[[dict[str, object], dict[str, object]], None] | None = None,
    ) -> Path:
        """The model as converters write it.

        `quantised` maps roles (`attn_qkv`) to makers of [N, K] weights; such a matrix is made, and
        the transformers model gets its values. `change(metadata, tensors)` may edit the file.
        """
        config, conversion = model.config, Conversion(model.config)
        tensors: dict[str, object] = {}
        for name, weight in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            value = conversion.to_file(name, weight.detach().clone().float())
            target = gguf_name(name)
            role = target.removesuffix(".weight").rpartition(".")[2]
            if quantised and role in quantised:
                made = quantised[role](*value.shape)
                weight.copy_(conversion.matrix_from_file(name, made.dequantize()))
                tensors[target] = made
            else:
                tensors[target] = value
        metadata = metadata_of(config)
        if change is not None:
            change(metadata, tensors)
        return write_gguf(path, "qwen35", metadata, tensors)

    return write


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
        config = transformers.Qwen3_5TextConfig(**{**sizes, **more})
        model = transformers.Qwen3_5ForCausalLM(config).float().eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name or name.endswith(("A_log", "dt_bias")):
                    weight.add_(0.3 * torch.randn_like(weight))
                elif "conv1d" not in name:
                    weight.mul_(4)
        return model

    return make


Load = Callable[..., QwenEngine]


@pytest.fixture(scope="session")
def load() -> Load:
    def load_engine(
        path: Path,
        *,
        slots: int = 6,
        cache: str = "f32",
        blocks: int = 64,
        max_context: int | None = None,
        drafts: DraftSource | None = None,
        max_draft: int = 0,
        registry: OpRegistry | None = None,
    ) -> QwenEngine:
        device = Device("cpu")
        context = LoadContext(
            gguf=GgufFile.open(path),
            device=device,
            ops=(registry or registry_of_ops()).binder(device, torch.float32),
            limits=EngineLimits(
                max_slots=slots, max_context=max_context, cache_type_k=cache, cache_type_v=cache
            ),
            sampler=lambda vocab_size: Sampler(slots, vocab_size),
            settings=None,
            progress=lambda done, total, what: None,
        )
        engine = QwenEngine.load(context, drafts=drafts, max_draft=max_draft)
        engine.allocate(blocks)
        return engine

    return load_engine


def registry_of_ops() -> OpRegistry:
    registry = core_registry()
    for spec in TARGET_OPS:
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

    def _spy(self, batch: PackedBatch) -> Tensor:
        logits = self._run(batch)
        starts = batch.cu_logits.tolist()
        for segment, slot in enumerate(batch.slot_ids.tolist()):
            seen = self.logits.setdefault(self._engine._requests[slot].id, {})
            for index in range(starts[segment], starts[segment + 1]):
                position = int(batch.positions[int(batch.logit_rows[index])])
                seen[position] = logits[index].clone()
        return logits

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
