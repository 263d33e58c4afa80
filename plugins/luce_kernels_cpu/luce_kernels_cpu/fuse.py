"""Passes over a graph of records. Each may be left out; none changes a bit of any result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from luce_kernels_cpu.graph import Graph, QuantizedValue, Record, Value
from luce_kernels_cpu.structs import Op

# Records whose kernel can write the int8 form of its output rows as well.
_QUANTISING = (Op.NORM, Op.SWIGLU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Which passes run. `overlap` lets independent records go on without a barrier."""

    quantize_once: bool = True
    residual: bool = True
    overlap: bool = True


ALL_PASSES = Fusion()
NO_FUSION = Fusion(quantize_once=False, residual=False, overlap=False)


def fuse(graph: Graph, fusion: Fusion) -> None:
    """Run the chosen passes, and give every matmul over int8 rows its quantised input."""
    if fusion.residual:
        _fuse_residuals(graph)
    _quantize_inputs(graph, share=fusion.quantize_once)


def _fuse_residuals(graph: Graph) -> None:
    """`add` of a matmul's output that nobody else reads becomes the matmul's residual.

    The matmul moves to the place of the addition: its inputs are there, and so is the residual.
    """
    uses = Counter(view.value for record in graph.records for view in record.views.values())
    uses.update(view.value for view in graph.outputs)
    matmuls = {r.out.value: r for r in graph.records if r.op is Op.MATMUL}
    moved: set[Record] = set()
    for place, record in enumerate(graph.records):
        if record.op is not Op.ADD:
            continue
        a, b = record.views["a"], record.views["b"]
        for sum_view, residual in ((b, a), (a, b)):
            matmul = matmuls.get(sum_view.value)
            if (
                matmul is not None
                and matmul not in moved
                and uses[sum_view.value] == 1
                and sum_view.is_whole
            ):
                fused = Record(
                    Op.MATMUL,
                    record.out,
                    {**matmul.views, "residual": residual},
                    matmul.constants,
                )
                graph.records[place] = fused
                moved.add(matmul)
                break
    graph.records = [record for record in graph.records if record not in moved]


def _quantize_inputs(graph: Graph, *, share: bool) -> None:
    """Shared: one int8 form for all matmuls that read the same rows, made where the rows are made
    if that kernel can, else by a record of its own."""
    made: dict[tuple[Value, int, int], QuantizedValue] = {}
    producers = {r.out.value: r for r in graph.records if r.op in _QUANTISING}
    records: list[Record] = []
    for record in graph.records:
        if record.op is Op.MATMUL and record.constants["weight"].takes_int8:
            x = record.views["x"]
            key = (x.value, x.offset, x.width)
            quantized = made.get(key) if share else None
            if quantized is None:
                quantized = QuantizedValue(x.value.max_rows, x.width)
                made[key] = quantized
                producer = producers.get(x.value)
                if share and producer is not None and x.is_whole:
                    producer.quantized_out = quantized
                else:
                    records.append(Record(Op.QUANTIZE, x, {"x": x}, quantized_out=quantized))
            record.quantized_in = quantized
        records.append(record)
    graph.records = records
