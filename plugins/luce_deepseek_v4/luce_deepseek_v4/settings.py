"""What the command line asks of this engine alone. Light: no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class DeepSeekSettings(BaseModel, extra="forbid", frozen=True):
    """Flags of `luce serve` for DeepSeek V4."""

    ds4_step_rows: int = Field(
        default=16,
        ge=1,
        le=4096,
        description="rows of a step at most; a lone prompt may use them all",
    )
    ds4_prompt_rows: int = Field(
        default=4, ge=1, le=4096, description="rows of one prompt in a step beside other requests"
    )
    ds4_prefill: Literal["exact"] = Field(
        default="exact", description="prompts attend as decoding does: only exact exists"
    )
