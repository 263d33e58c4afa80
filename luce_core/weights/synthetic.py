"""Models of any size with random weights, for tests and benchmarks without downloads."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from luce_core.errors import ConfigError
from luce_core.weights.gguf_writer import TensorSource, write_file
from luce_core.weights.quant.table import QuantType, quant_type
from luce_core.weights.synthetic_blocks import random_chunks
from luce_core.weights.synthetic_vocab import tokenizer_metadata

Fill = Literal["weight", "norm", "bias", "decay", "numbers"]

# What each architecture adds to the common dense layer, and its pre-tokenizer.
_EXTRAS: Mapping[str, frozenset[str]] = MappingProxyType(
    {"llama": frozenset(), "qwen2": frozenset({"bias"}), "qwen3": frozenset({"qk_norm"})}
)
_PRE: Mapping[str, str] = MappingProxyType({"llama": "smollm", "qwen2": "qwen2", "qwen3": "qwen2"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a synthetic model: `shape` in torch order, `fill` chooses its distribution.

    `weight`: mean 0, standard deviation 1/sqrt(row length), so that products keep their scale.
    `norm`: around 1. `bias`: around 0. `decay`: around -1. `numbers`: in each row of I32, different
    ones of 0 .. `below` - 1. `qtype` None leaves the type to the writer's rules.
    """

    name: str
    shape: tuple[int, ...]
    fill: Fill = "weight"
    qtype: str | None = None
    below: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticModel:
    """A dense decoder of architecture llama, qwen2 or qwen3.

    `qtype` is the type of the matrices; one whose rows are not whole blocks falls back to Q8_0,
    then F16, as quantisers do. `types` overrides it by tensor name or by role (`attn_q.weight`,
    `attn_q`, `token_embd`). The same fields give the same file.
    """

    arch: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int | None = None
    ff: int = 128
    vocab: int = 320
    context: int = 256
    qtype: str = "Q8_0"
    seed: int = 0
    tied: bool = True
    rope_base: float = 10_000.0
    types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.arch not in _EXTRAS:
            raise ConfigError(f"no synthetic {self.arch!r}: known are {', '.join(_EXTRAS)}")
        if self.head_dim is None and self.width % self.heads:
            raise ConfigError(f"width {self.width} is not a multiple of {self.heads} heads")
        if self.heads % self.kv_heads:
            raise ConfigError(f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads")

    @property
    def head_width(self) -> int:
        return self.width // self.heads if self.head_dim is None else self.head_dim


def write_synthetic(path: Path | str, model: SyntheticModel) -> Path:
    """Write the model as one GGUF file and return its path; memory use is a few chunks."""
    return write_random(
        path,
        dense_metadata(model),
        dense_tensors(model),
        qtype=model.qtype,
        types=model.types,
        seed=model.seed,
    )


def write_random(
    path: Path | str,
    metadata: Mapping[str, object],
    tensors: Iterable[TensorSpec],
    *,
    qtype: str = "Q8_0",
    types: Mapping[str, str] = MappingProxyType({}),
    seed: int = 0,
) -> Path:
    """Write any architecture from its metadata and tensor list, with random weights.

    A tensor's bits depend on `seed` and its name only. Types: the spec's, else that in `types`
    by name or role, else `qtype` for matrices and F32 for vectors.
    """
    sources = [_source(spec, qtype, types, seed) for spec in tensors]
    return write_file(path, metadata, sources)


def dense_metadata(model: SyntheticModel) -> dict[str, object]:
    """All keys of a llama, qwen2 or qwen3 file, the tokenizer's included."""
    arch = model.arch
    return {
        "general.architecture": arch,
        "general.type": "model",
        "general.name": f"synthetic {arch}",
        "general.quantization_version": 2,
        f"{arch}.block_count": model.layers,
        f"{arch}.context_length": model.context,
        f"{arch}.embedding_length": model.width,
        f"{arch}.feed_forward_length": model.ff,
        f"{arch}.attention.head_count": model.heads,
        f"{arch}.attention.head_count_kv": model.kv_heads,
        f"{arch}.attention.key_length": model.head_width,
        f"{arch}.attention.value_length": model.head_width,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": model.rope_base,
        f"{arch}.rope.dimension_count": model.head_width,
        f"{arch}.vocab_size": model.vocab,
        **tokenizer_metadata(model.vocab, _PRE[arch]),
    }


def dense_tensors(model: SyntheticModel) -> list[TensorSpec]:
    """The tensors of a llama, qwen2 or qwen3 file in the file's order."""
    width, head = model.width, model.head_width
    q_width, kv_width = model.heads * head, model.kv_heads * head
    extras = _EXTRAS[model.arch]
    specs = [TensorSpec("token_embd.weight", (model.vocab, width))]
    for layer in range(model.layers):
        block = f"blk.{layer}"
        specs += [
            TensorSpec(f"{block}.attn_norm.weight", (width,), "norm"),
            TensorSpec(f"{block}.attn_q.weight", (q_width, width)),
            TensorSpec(f"{block}.attn_k.weight", (kv_width, width)),
            TensorSpec(f"{block}.attn_v.weight", (kv_width, width)),
            TensorSpec(f"{block}.attn_output.weight", (width, q_width)),
            TensorSpec(f"{block}.ffn_norm.weight", (width,), "norm"),
            TensorSpec(f"{block}.ffn_gate.weight", (model.ff, width)),
            TensorSpec(f"{block}.ffn_up.weight", (model.ff, width)),
            TensorSpec(f"{block}.ffn_down.weight", (width, model.ff)),
        ]
        if "bias" in extras:
            specs += [
                TensorSpec(f"{block}.attn_q.bias", (q_width,), "bias"),
                TensorSpec(f"{block}.attn_k.bias", (kv_width,), "bias"),
                TensorSpec(f"{block}.attn_v.bias", (kv_width,), "bias"),
            ]
        if "qk_norm" in extras:
            specs += [
                TensorSpec(f"{block}.attn_q_norm.weight", (head,), "norm"),
                TensorSpec(f"{block}.attn_k_norm.weight", (head,), "norm"),
            ]
    specs.append(TensorSpec("output_norm.weight", (width,), "norm"))
    if not model.tied:
        specs.append(TensorSpec("output.weight", (model.vocab, width)))
    return specs


def _source(spec: TensorSpec, qtype: str, types: Mapping[str, str], seed: int) -> TensorSource:
    kind = _type_of(spec, qtype, types)
    values = math.prod(spec.shape)
    spread = spec.shape[-1] ** -0.5 if spec.fill == "weight" else 0.1
    mean = {"norm": 1.0, "decay": -1.0}.get(spec.fill, 0.0)

    def chunks() -> Iterable[memoryview]:
        rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
        if spec.fill == "numbers":
            return [_numbers(spec, rng)]
        return random_chunks(kind, values, spread, mean, rng)

    return TensorSource(spec.name, kind, spec.shape, chunks)


def _numbers(spec: TensorSpec, rng: np.random.Generator) -> memoryview:
    rows, count = math.prod(spec.shape[:-1]), spec.shape[-1]
    if count > spec.below or spec.qtype != "I32":
        raise ConfigError(f"{spec.name}: {count} different numbers of {spec.below} as {spec.qtype}")
    first = rng.integers(0, spec.below, (rows, 1), dtype=np.int32)
    numbers = (first + np.arange(count, dtype=np.int32)) % np.int32(spec.below)
    return np.ascontiguousarray(numbers, dtype=np.int32).view(np.uint8).reshape(-1).data


def _type_of(spec: TensorSpec, qtype: str, types: Mapping[str, str]) -> QuantType:
    default = qtype if len(spec.shape) > 1 else "F32"
    wanted = spec.qtype or next((types[n] for n in _names(spec.name) if n in types), default)
    fallbacks = (quant_type(name) for name in (wanted, "Q8_0", "F16"))
    return next(kind for kind in fallbacks if spec.shape[-1] % kind.block_values == 0)


def _names(name: str) -> Sequence[str]:
    """A tensor's name, without its layer, and without its suffix: most exact first."""
    inner = name.split(".", 2)[2] if name.startswith("blk.") else name
    return name, inner, inner.removesuffix(".weight")
