"""What makes a layer's queries, keys and values and stores them, as one record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce_kernels_cpu.fused_structs import turn_width
from luce_kernels_cpu.graph import Graph, Record, Value, View, read_one_form
from luce_kernels_cpu.structs import Domain, Op

_TILE = 16
_SIDES = ("q", "k", "v")


def fuse_projections(graph: Graph) -> None:
    """A ROPE_WRITE and the three products it reads become a PROJECT_HEADS, if nobody else reads
    these, they multiply the same rows in one form, and heads are of whole tiles. How rows turn is
    found once for all layers, by TURNS at the start of the step."""
    product = graph.product_finder()
    turns: dict[tuple[Any, ...], Record] = {}
    gone: set[Record] = set()
    for place, record in enumerate(graph.records):
        if record.op is not Op.ROPE_WRITE or not _fits(record):
            continue
        found = [product(record.views[side]) for side in _SIDES]
        sides = [each for each in found if each is not None]
        if len(sides) < len(found) or any(r.views["x"] != sides[0].views["x"] for r in sides):
            continue
        if not read_one_form(sides):
            continue
        rope = record.constants["q"]
        turn = turns.setdefault(_turning(rope), _turns(record))
        weights = {name: each.constants["weight"] for name, each in zip(_SIDES, sides, strict=True)}
        biases = {name: each.constants["bias"] for name, each in zip(_SIDES, sides, strict=True)}
        _, k, v = sides
        graph.records[place] = Record(
            Op.PROJECT_HEADS,
            record.out,
            {"x": sides[0].views["x"], "turns": turn.out},
            {
                **weights,
                **{f"{name}_bias": bias for name, bias in biases.items()},
                "heads": record.constants,
            },
            caches=record.caches,
            also={"k": k.out, "v": v.out},
            counter_bytes=4 * (rope["heads"] + 2 * record.constants["facts"]["kv_heads"]),
        )
        gone.update(sides)
    kept = [record for record in graph.records if record not in gone]
    graph.records = [*turns.values(), *kept]


def _fits(record: Record) -> bool:
    """Whether heads are of whole tiles, and q and k turn alike."""
    q, k = record.constants["q"], record.constants["k"]
    head_dim = record.constants["facts"]["head_dim"]
    return (
        q["dim"] % _TILE == 0
        and k["dim"] == head_dim
        and head_dim % _TILE == 0
        and _turning(q) == _turning(k)
    )


def _turning(rope: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        rope["interleaved"],
        rope["attention_factor"],
        rope["rotary_dim"],
        tuple(rope["inv_freq"].tolist()),
    )


def _turns(heads: Record) -> Record:
    rope = heads.constants["q"]
    width = 2 * turn_width(rope["rotary_dim"] // 2, rope["interleaved"])
    value = Value(Domain.TOKENS, heads.out.value.max_rows, width)
    return Record(Op.TURNS, View(value, 0, width), {}, rope)
