"""The two products of a gated feed-forward layer and what is made of them, as one record."""

from __future__ import annotations

from luce_kernels_cpu.graph import Graph, Record, read_one_form
from luce_kernels_cpu.structs import Op


def fuse_gate_up(graph: Graph) -> None:
    """`swiglu` of two products of the same rows, which nobody else reads, becomes a GATE_UP, if
    both multiply them in one form."""
    product = graph.product_finder()
    gone: set[Record] = set()

    for place, record in enumerate(graph.records):
        if record.op is not Op.SWIGLU:
            continue
        gate, up = product(record.views["gate"]), product(record.views["up"])
        if gate is None or up is None or gate.views["x"] != up.views["x"]:
            continue
        if not read_one_form((gate, up)):
            continue
        graph.records[place] = Record(
            Op.GATE_UP,
            record.out,
            {"x": gate.views["x"]},
            {
                "gate": gate.constants["weight"],
                "gate_bias": gate.constants["bias"],
                "up": up.constants["weight"],
                "up_bias": up.constants["bias"],
                "limit": record.constants["limit"],
            },
        )
        gone.update((gate, up))
    graph.records = [record for record in graph.records if record not in gone]
