"""The ops of the draft, for `luce_register_ops`."""

from __future__ import annotations

from luce_qwen_dflash2.ops import (
    candidate_select,
    draft_attention,
    draft_draw,
    dynamic_conv,
    put_rows,
    ring_write,
    take_rows,
)

DRAFT_OPS = tuple(
    module.SPEC
    for module in (
        put_rows,
        take_rows,
        dynamic_conv,
        draft_attention,
        ring_write,
        draft_draw,
        candidate_select,
    )
)
