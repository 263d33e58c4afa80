"""Passes over a graph of records. Each may be left out; none changes a bit of any result."""

from __future__ import annotations

from dataclasses import dataclass

from luce_kernels_cpu.fuse_gate_up import fuse_gate_up
from luce_kernels_cpu.fuse_head_token import fuse_head_token
from luce_kernels_cpu.fuse_heads import fuse_heads
from luce_kernels_cpu.fuse_projections import fuse_projections
from luce_kernels_cpu.graph import Graph, QuantizedValue, Record, Value
from luce_kernels_cpu.structs import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Which passes run. `overlap` lets independent records go on without a barrier."""

    heads: bool = True
    projections: bool = True
    gate_up: bool = True
    head_token: bool = True
    quantize_once: bool = True
    int8_alone: bool = True
    residual: bool = True
    overlap: bool = True


PRODUCTS = (Op.MATMUL, Op.GATE_UP, Op.PROJECT_HEADS, Op.HEAD_TOKEN)
ALL_PASSES = Fusion()
NO_FUSION = Fusion(
    heads=False,
    projections=False,
    gate_up=False,
    head_token=False,
    quantize_once=False,
    int8_alone=False,
    residual=False,
    overlap=False,
)


def fuse(graph: Graph, fusion: Fusion) -> None:
    """Run the chosen passes, and give every matmul over int8 rows its quantised input."""
    if fusion.heads:
        fuse_heads(graph)
    if fusion.projections:
        fuse_projections(graph)
    if fusion.gate_up:
        fuse_gate_up(graph)
    if fusion.head_token:
        fuse_head_token(graph)
    if fusion.residual:
        _fuse_residuals(graph)
    _quantize_inputs(graph, share=fusion.quantize_once)
    if fusion.int8_alone:
        _drop_unread_floats(graph)


def _fuse_residuals(graph: Graph) -> None:
    """`add` of a matmul's output that nobody else reads becomes the matmul's residual.

    The matmul moves to the place of the addition: its inputs are there, and so is the residual.
    """
    uses = graph.uses()
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


def _int8_group(record: Record) -> int:
    """How many values of an output row its kernel finishes at a time, if it can write their int8
    form as well: that must be whole blocks. 0 if it cannot."""
    native = record.native
    if native is not None:
        group = native.int8_group
        return 0 if group is None else group(record.constants, record.out.width)
    match record.op:
        case Op.SWIGLU | Op.GATE_UP:
            return record.out.width
        case Op.NORM:
            return int(record.constants["group"])
        case Op.ATTENTION:
            return int(record.constants["head_dim"])
        case _:
            return 0


def _int8_block(record: Record) -> int:
    """How many values share a scale where it multiplies its rows `x` in their int8 form, else 0."""
    if record.native is not None:
        return record.native.int8_block(record.constants)
    if record.op not in PRODUCTS:
        return 0
    blocks = {each.int8_block for each in record.weights} - {0}
    assert len(blocks) < 2, blocks  # those that are fused read one form
    return blocks.pop() if blocks else 0


def _quantize_inputs(graph: Graph, *, share: bool) -> None:
    """Shared: one int8 form for all matmuls that read the same rows in the same blocks, made where
    the rows are made if that kernel can, else by a record of its own."""
    made: dict[tuple[Value, int, int, int], QuantizedValue] = {}
    producers = {r.out.value: r for r in graph.records if _int8_group(r)}
    records: list[Record] = []
    for record in graph.records:
        block = _int8_block(record)
        if block:
            x = record.views["x"]
            key = (x.value, x.offset, x.width, block)
            quantized = made.get(key) if share else None
            if quantized is None:
                quantized = QuantizedValue(x.value.max_rows, x.width, block)
                made[key] = quantized
                producer = producers.get(x.value)
                if (
                    share
                    and producer is not None
                    and producer.quantized_out is None
                    and _int8_group(producer) % block == 0
                    and x.is_whole
                ):
                    producer.quantized_out = quantized
                else:
                    records.append(Record(Op.QUANTIZE, x, {"x": x}, quantized_out=quantized))
            record.quantized_in = quantized
        records.append(record)
    graph.records = records


def _drop_unread_floats(graph: Graph) -> None:
    """Rows whose int8 form alone is read are made in no other form, if the kernel can do that."""
    read = {value for record in graph.records for value in record.reads}
    read.update(view.value for view in graph.outputs)
    for record in graph.records:
        can = record.op in (Op.NORM, Op.SWIGLU, Op.GATE_UP) or record.native is not None
        if can and record.quantized_out is not None:
            record.floats = record.out.value in read
