"""A PackedBatch as an lk_batch."""

from __future__ import annotations

from luce_core.batch.packed import PackedBatch
from luce_kernels_cpu.structs import Batch


def fill_batch(native: Batch, batch: PackedBatch) -> None:
    """Point `native` at the batch's tensors; they must live until it is used."""
    native.token_ids = batch.token_ids.data_ptr()
    native.positions = batch.positions.data_ptr()
    native.cu_seqlens = batch.cu_seqlens.data_ptr()
    native.slot_ids = batch.slot_ids.data_ptr()
    native.context_lens = batch.context_lens.data_ptr()
    native.block_tables = batch.block_tables.data_ptr()
    native.kv_rows = batch.kv_rows.data_ptr()
    native.logit_rows = batch.logit_rows.data_ptr()
    native.cu_logits = batch.cu_logits.data_ptr()
    read = batch.logits_read
    native.logits_read = None if read is None else read.data_ptr()
    native.rows = batch.rows
    native.segments = batch.segments
    native.logits = batch.logits
    native.num_prefill = batch.num_prefill
    native.prefill_rows = batch.prefill_rows
    native.max_query = batch.max_query
    native.max_context = batch.max_context
    native.table_stride = batch.block_tables.stride(0)
