"""What the records of a step must read and compute, for `luce bench-step`."""

from __future__ import annotations

from luce_core.batch.packed import PackedBatch
from luce_core.ops.program import Work
from luce_kernels_cpu.graph import Record
from luce_kernels_cpu.structs import Domain, Op


def work_of(record: Record, batch: PackedBatch) -> Work:
    """Weights once, and the keys and values of each segment once; activations count for nothing,
    since they stay in the caches of the cores."""
    rows = batch.logits if record.out.value.domain is Domain.LOGITS else batch.rows
    if record.native is not None:
        work = record.native.work
        return _state(record, batch) if work is None else work(record.constants, rows)
    if record.op is Op.ATTENTION:
        return _attention(record, batch)
    if record.op is Op.EMBEDDING:
        table = record.constants["table"]
        return Work(rows * table.nbytes // table.n)
    weights = record.weights
    operations = {True: 0, False: 0}
    for weight in weights:
        operations[weight.takes_int8] += 2 * rows * weight.n * weight.k
    return Work(
        sum(weight.nbytes for weight in weights) if rows else 0,
        int8_operations=operations[True],
        float_operations=operations[False],
    )


def _state(record: Record, batch: PackedBatch) -> Work:
    """The state of each segment's slot, which is read and written: both move its bytes."""
    slot_bytes = sum(cache[0].numel() * cache.element_size() for cache in record.moved_caches)
    return Work(2 * slot_bytes * batch.segments)


def _attention(record: Record, batch: PackedBatch) -> Work:
    ends = batch.cu_seqlens.tolist()
    contexts = batch.context_lens.tolist()
    keys = sum(contexts) + batch.rows
    # A row sees its own key and those before it.
    pairs = sum(
        context * (end - start) + (end - start) * (end - start + 1) // 2
        for context, start, end in zip(contexts, ends, ends[1:], strict=False)
    )
    token_bytes = sum(cache[0, 0].numel() * cache.element_size() for cache in record.caches)
    constants = record.constants
    return Work(
        keys * token_bytes,
        float_operations=4 * pairs * constants["heads"] * constants["head_dim"],
    )
