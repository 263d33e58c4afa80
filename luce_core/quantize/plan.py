"""Which tensor gets which type: everything that can be refused before a byte is written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from luce_core.errors import ConfigError, ModelFileError
from luce_core.quantize.options import QuantizeOptions
from luce_core.weights.quant_types import (
    DEQUANTIZERS,
    QUANTIZABLE,
    QuantTensor,
    QuantType,
    quant_type,
)

FLOATS = ("F32", "F16", "BF16", "F64")
# I32 holds ids, no weights.
WRITABLE = tuple(name for name in QUANTIZABLE if name != "I32")
# As quantisers do where a row is not whole blocks.
_FALLBACKS = ("Q8_0", "F16")
_OUTPUT, _EMBEDDING = "output.weight", "token_embd.weight"
_LEAST_BITS = 8.0
# Small, and what the model decides with: rounding them costs more than it saves. Norms of matrices
# (per head), routers, recurrent convolutions and mixers, hyper-connections, position tables.
_STAYS = re.compile(
    r"(_norm|ffn_gate_inp|ffn_gate_inp_shexp|ffn_gate_tid2eid|ssm_conv1d|ssm_a|ssm_dt|shortconv\.conv"
    r"|(^|\.)(output_)?hc_[a-z_]*|compressor_ape|attn_sinks|position_embd|rope_freqs)(\.|$)"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A tensor of the input and the type that it will have. `fell_back`: its rows are not whole
    blocks of the type that was asked for."""

    tensor: QuantTensor
    qtype: QuantType
    fell_back: bool = False

    @property
    def changes(self) -> bool:
        return self.qtype != self.tensor.qtype

    @property
    def nbytes(self) -> int:
        shape = self.tensor.shape
        rows = self.tensor.blocks.numel() // self.tensor.qtype.row_bytes(shape[-1])
        return rows * self.qtype.row_bytes(shape[-1])


def choose_types(
    path: object, tensors: Iterable[QuantTensor], options: QuantizeOptions
) -> list[Choice]:
    """A choice for every tensor, in order.

    Raises ConfigError for types that cannot be written and for patterns that fit nothing, and
    ModelFileError for a tensor that was quantised before.
    """
    types = _Types(options)
    choices = [types.choice(tensor) for tensor in tensors]
    types.refuse_idle_patterns()
    for choice in choices:
        kind = choice.tensor.qtype
        if choice.changes and kind.name not in DEQUANTIZERS:
            raise ModelFileError(
                path, f"tensor {choice.tensor.name!r}", f"is {kind}, which cannot be read"
            )
        if choice.changes and kind.name not in FLOATS and not options.allow_requantize:
            raise ModelFileError(
                path,
                f"tensor {choice.tensor.name!r}",
                f"is {kind} already: quantising it again adds to its errors. Give the file that "
                "was not quantised, or --allow-requantize",
            )
    return choices


class _Types:
    """The options' types, and which of the patterns have been of use."""

    def __init__(self, options: QuantizeOptions) -> None:
        self._main = _writable("--type", options.type_name)
        careful = self._main if _bits(self._main) >= _LEAST_BITS else quant_type("Q8_0")
        self._special = {
            _OUTPUT: _writable("--output-type", options.output_type, careful),
            _EMBEDDING: _writable("--embedding-type", options.embedding_type, careful),
        }
        self._rules = [
            (rule.pattern, _writable("--tensor-type", rule.type_name)) for rule in options.rules
        ]
        self._keep = options.keep
        self._idle = {*self._keep, *(pattern for pattern, _ in self._rules)}

    def choice(self, tensor: QuantTensor) -> Choice:
        name = tensor.name
        kept = [pattern for pattern in self._keep if pattern.search(name)]
        self._idle.difference_update(kept)
        if kept or stays(tensor):
            return Choice(tensor, tensor.qtype)
        for pattern, kind in self._rules:
            if pattern.search(name):
                self._idle.discard(pattern)
                if tensor.shape[-1] % kind.block_values:
                    raise ConfigError(
                        f"--tensor-type {pattern.pattern}={kind}: rows of {name!r} hold "
                        f"{tensor.shape[-1]} values, which are not whole blocks of "
                        f"{kind.block_values}"
                    )
                return Choice(tensor, kind)
        wanted = self._special.get(name, self._main)
        for kind in (wanted, *map(quant_type, _FALLBACKS)):
            if tensor.shape[-1] % kind.block_values == 0:
                return Choice(tensor, kind, fell_back=kind != wanted)
        raise AssertionError("F16 has no blocks")

    def refuse_idle_patterns(self) -> None:
        if self._idle:
            words = ", ".join(sorted(repr(pattern.pattern) for pattern in self._idle))
            raise ConfigError(f"--tensor-type and --keep: no tensor to change fits {words}")


def stays(tensor: QuantTensor) -> bool:
    """Whether a tensor keeps its type whatever is asked for."""
    is_weight = tensor.qtype.is_quantised or tensor.qtype.name in FLOATS
    return (
        not is_weight
        or len(tensor.shape) < 2
        or not tensor.name.endswith(".weight")
        or _STAYS.search(tensor.name.removesuffix(".weight")) is not None
    )


def _bits(kind: QuantType) -> float:
    return 8 * kind.block_bytes / kind.block_values


def _writable(flag: str, name: str | None, default: QuantType | None = None) -> QuantType:
    if name is None:
        assert default is not None
        return default
    if name not in WRITABLE:
        raise ConfigError(f"{flag}: cannot write {name!r}; known types are {', '.join(WRITABLE)}")
    return quant_type(name)
