"""The usage profile: how often each expert was picked, as a file that outlives the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from luce_core.errors import ConfigError
from luce_deepseek_v4.config import ModelConfig

_MOST_BYTES = 32 << 20
_FLAG = "--ds4-expert-profile"

Count = Annotated[int, Field(ge=0, le=1 << 53)]


class UsageProfile(BaseModel, extra="forbid", frozen=True, strict=True):
    """`counts[layer][expert]` is how often the expert was picked in `rows` rows of steps."""

    luce_expert_usage: Literal[1] = 1  # the version of this schema
    architecture: Literal["deepseek4"] = "deepseek4"
    rows: Count
    counts: list[list[Count]]

    def write(self, path: Path) -> None:
        """Replace the file at once. OSError if it cannot be written."""
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            draft.write_text(self.model_dump_json() + "\n", encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def read_usage(path: Path, config: ModelConfig) -> UsageProfile:
    """The profile of a model of this size; ConfigError that says what is wrong with it."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{_FLAG} {path}: {error.strerror or error}") from error
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{_FLAG} {path}: is larger than {_MOST_BYTES} bytes")
    try:
        profile = UsageProfile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"{_FLAG} {path}: {where}: {first['msg']}") from error
    if len(profile.counts) != config.layers:
        raise ConfigError(
            f"{_FLAG} {path}: counts {len(profile.counts)} layers, the model has {config.layers}"
        )
    for layer, counts in enumerate(profile.counts):
        if len(counts) != config.moe.experts:
            raise ConfigError(
                f"{_FLAG} {path}: counts {len(counts)} experts in layer {layer}, the model has "
                f"{config.moe.experts}"
            )
    return profile
