"""A model's head and the best token of each row, as one record."""

from __future__ import annotations

from luce_kernels_cpu.graph import Graph, Record
from luce_kernels_cpu.structs import Domain, Op


def fuse_head_token(graph: Graph) -> None:
    """`greedy_token` of a product of logit rows that no other op reads becomes a HEAD_TOKEN. If the
    step returns the logits, they are made of rows that the batch says are read."""
    returned = {view.value for view in graph.outputs}
    uses = graph.reader_counts()
    heads = {r.out.value: r for r in graph.records if r.op is Op.MATMUL}
    gone: set[Record] = set()
    for place, record in enumerate(graph.records):
        if record.op is not Op.GREEDY_TOKEN:
            continue
        logits = record.views["x"]
        head = heads.get(logits.value)
        if (
            head is None
            or "residual" in head.views
            or not logits.is_whole
            or uses[logits.value] != 1
            or logits.value.domain is not Domain.LOGITS
        ):
            continue
        graph.records[place] = Record(
            Op.HEAD_TOKEN,
            record.out,
            {"x": head.views["x"]},
            {"head": head.constants["weight"], "head_bias": head.constants["bias"]},
            also={"logits": logits} if logits.value in returned else {},
            counter_bytes=8 * (logits.value.max_rows + 1),
        )
        gone.add(head)
    graph.records = [record for record in graph.records if record not in gone]
