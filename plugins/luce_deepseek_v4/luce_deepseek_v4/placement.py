"""Which routed experts lie on the engine's own device, and which on a second one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.quant_types import QuantTensor
from luce_deepseek_v4.config import ModelConfig

MB = 1_000_000
ROLES = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


@dataclass(frozen=True, slots=True)
class Placement:
    """The experts of each layer by owner, ascending: `near` on the engine's device, `far` on the
    other one. `near_bytes` and `far_bytes` are those of their weights in the file."""

    near: tuple[tuple[int, ...], ...]
    far: tuple[tuple[int, ...], ...]
    near_bytes: int
    far_bytes: int

    @property
    def near_experts(self) -> int:
        return sum(map(len, self.near))

    @property
    def far_experts(self) -> int:
        return sum(map(len, self.far))


def place_experts(
    usage: Sequence[Sequence[int]], sizes: Sequence[int], *, budget: int
) -> Placement:
    """Fill `budget` bytes of the near device with the most used experts for their size.

    `usage` is how often each expert of each layer was picked, `sizes` the bytes of one expert by
    layer. Equals go by expert number and then by layer, so that no usage at all spreads the near
    experts over the layers.
    """
    order = sorted(
        ((layer, expert) for layer, counts in enumerate(usage) for expert in range(len(counts))),
        key=lambda place: (-usage[place[0]][place[1]] / sizes[place[0]], place[1], place[0]),
    )
    near: list[set[int]] = [set() for _ in usage]
    taken = 0
    for layer, expert in order:
        if taken + sizes[layer] <= budget:
            taken += sizes[layer]
            near[layer].add(expert)
    total = sum(size * len(counts) for size, counts in zip(sizes, usage, strict=True))
    far = [
        [expert for expert in range(len(counts)) if expert not in kept]
        for counts, kept in zip(usage, near, strict=True)
    ]
    return Placement(
        tuple(tuple(sorted(kept)) for kept in near), tuple(map(tuple, far)), taken, total - taken
    )


def expert_sizes(gguf: GgufFile, config: ModelConfig) -> list[int]:
    """Bytes of one expert of each layer in the file; tensors that are missing count nothing here
    and are refused when they are claimed."""
    sizes = []
    for layer in range(config.layers):
        names = (f"blk.{layer}.{role}.weight" for role in ROLES)
        found = (gguf.tensors[name].nbytes for name in names if name in gguf.tensors)
        sizes.append(max(1, sum(found) // config.moe.experts))
    return sizes


def weight_of(weight: QuantTensor, experts: Sequence[int]) -> QuantTensor:
    """Those experts of a weight [E, N, K], in their order: a copy in memory."""
    blocks = weight.blocks.index_select(0, torch.tensor(experts, dtype=torch.long))
    return QuantTensor(weight.name, weight.qtype, (len(experts), *weight.shape[1:]), blocks)
