"""Options of `luce bench-step`: every setting of `luce serve`, and what to measure."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model, field_validator

from luce_core.bench.options import Counts, split_counts
from luce_core.settings import Settings

if TYPE_CHECKING:
    # What `with_step_options` makes, for the type checker.
    class StepSettings(Settings):
        rows: Counts
        prefill: Counts
        steps: int
        json: Path | None  # type: ignore[assignment]


_MOST_ROWS = 1 << 20


def with_step_options(kind: type[Settings]) -> type[Settings]:
    """`kind` with the options of this command as further settings."""
    fields: dict[str, Any] = {
        "rows": (Counts, Field((1, 4, 5, 8), description="decode rows of a step, as 1,4")),
        "prefill": (Counts, Field((512, 2048), description="prompt lengths, as 512,2048")),
        "steps": (int, Field(40, ge=3, le=100_000, description="steps measured of each kind")),
        "json": (Path | None, Field(None, description="write every figure there")),
    }
    validators: dict[str, Any] = {
        "split": field_validator("rows", "prefill", mode="before")(split_counts),
        "in_range": field_validator("rows", "prefill")(_in_range),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `json` is an old method of pydantic's models
        return create_model("StepSettings", __base__=kind, __validators__=validators, **fields)


def _in_range(value: tuple[int, ...]) -> tuple[int, ...]:
    if not all(1 <= count <= _MOST_ROWS for count in value):
        raise ValueError(f"give numbers from 1 to {_MOST_ROWS}")
    return value
