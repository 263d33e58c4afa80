"""The ops of the draft, for `luce_register_ops`."""

from __future__ import annotations

from luce_qwen_dflash2.ops import (
    candidate_select,
    draft_attention,
    draft_draw,
    dynamic_conv,
    ring_write,
    stage_rows,
)

DRAFT_OPS = tuple(
    module.SPEC
    for module in (
        stage_rows,
        dynamic_conv,
        draft_attention,
        ring_write,
        draft_draw,
        candidate_select,
    )
)
