"""What the command line asks of this engine alone. Light: no torch."""

from __future__ import annotations

from pathlib import Path
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
    ds4_expert_device: str | None = Field(
        default=None, description="second device, for the experts beyond the budget"
    )
    ds4_expert_budget_mb: int | None = Field(
        default=None,
        ge=0,
        le=10_000_000,
        description="MB of routed experts on the target device, with --ds4-expert-device",
    )
    ds4_expert_profile: Path | None = Field(
        default=None, description="usage profile that says which experts are used most"
    )
    ds4_collect_routing: Path | None = Field(
        default=None, description="count the experts' use and write it here at the end"
    )
    ds4_batch_copies: bool = Field(
        default=True, description="copy rows between two devices all at once, each way, by layer"
    )
    ds4_group_experts: bool = Field(
        default=True, description="one launch for all picks of a device instead of one for each"
    )
    ds4_group_rows: int = Field(
        default=8,
        ge=1,
        le=32,
        description="rows of an expert that are multiplied at a time, at most",
    )
