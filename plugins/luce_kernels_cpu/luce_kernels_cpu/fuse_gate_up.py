"""The two products of a gated feed-forward layer and what is made of them, as one record."""

from __future__ import annotations

from luce_kernels_cpu.graph import Graph, Record, View
from luce_kernels_cpu.structs import Op


def fuse_gate_up(graph: Graph) -> None:
    """`swiglu` of two products of the same rows, which nobody else reads, becomes a GATE_UP."""
    uses = graph.uses()
    products = {r.out.value: r for r in graph.records if r.op is Op.MATMUL}
    gone: set[Record] = set()

    def product(view: View) -> Record | None:
        """The product that the view is all of, made for this reader alone."""
        found = products.get(view.value)
        fits = (
            found is not None
            and view.is_whole
            and uses[view.value] == 1
            and "residual" not in found.views
        )
        return found if fits else None

    for place, record in enumerate(graph.records):
        if record.op is not Op.SWIGLU:
            continue
        gate, up = product(record.views["gate"]), product(record.views["up"])
        if gate is None or up is None or gate.views["x"] != up.views["x"]:
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
