"""What lies between a layer's projections and its attention, as one record."""

from __future__ import annotations

from luce_kernels_cpu.graph import Graph, Record, View
from luce_kernels_cpu.structs import Op


def fuse_heads(graph: Graph) -> None:
    """`rope` of q and of k, norms of their heads, and `kv_write` become a ROPE_WRITE each, at the
    place of the write, if nobody else reads what is in between."""
    uses = graph.uses()
    makers = {r.out.value: r for r in graph.records if r.op in (Op.ROPE, Op.NORM)}
    gone: set[Record] = set()

    def maker(view: View, op: Op) -> Record | None:
        """The record of `op` that makes the view, for this reader alone."""
        found = makers.get(view.value)
        fits = found is not None and found.op is op and view.is_whole and uses[view.value] == 1
        return found if fits else None

    def normed(rope: Record) -> Record | None:
        norm = maker(rope.views["x"], Op.NORM)
        fits = norm is not None and norm.constants["group"] == rope.constants["dim"]
        return norm if fits else None

    for place, write in enumerate(graph.records):
        attention = _attention_of(graph.records[place:], write)
        if attention is None:
            continue
        q, k = maker(attention.views["q"], Op.ROPE), maker(write.views["k"], Op.ROPE)
        if q is None or k is None or q not in graph.records[:place]:
            continue
        q_norm, k_norm = normed(q), normed(k)
        graph.records[place] = Record(
            Op.ROPE_WRITE,
            q.out,
            {
                "q": (q_norm or q).views["x"],
                "k": (k_norm or k).views["x"],
                "v": write.views["v"],
            },
            {
                "q": q.constants,
                "k": k.constants,
                "q_norm": q_norm and q_norm.constants,
                "k_norm": k_norm and k_norm.constants,
                "facts": write.constants,
            },
            caches=write.caches,
        )
        gone.update(record for record in (q, k, q_norm, k_norm) if record is not None)
    graph.records = [record for record in graph.records if record not in gone]


def _attention_of(records: list[Record], write: Record) -> Record | None:
    """The first attention over the caches that `write`, the first of the records, fills."""
    if write.op is not Op.KV_WRITE:
        return None
    for record in records:
        if record.op is Op.ATTENTION and _same(record, write):
            return record
    return None


def _same(a: Record, b: Record) -> bool:
    """Whether both use the same caches."""
    return all(mine is theirs for mine, theirs in zip(a.caches, b.caches, strict=True))
