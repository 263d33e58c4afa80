"""Devices by the name that users write. torch calls ROCm "cuda": known here and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from luce_core.errors import ConfigError

KINDS = ("cpu", "cuda", "hip")
_PATTERN = re.compile(r"(cpu|cuda|hip)(?::(\d{1,3}))?")


@dataclass(frozen=True, slots=True)
class Device:
    """Where an engine runs: kind `cpu`, `cuda` or `hip`, and the index among its kind."""

    kind: str
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> Device:
        """`cpu`, `cuda`, `cuda:1`, `hip:0`; anything else is a ConfigError that lists these."""
        match = _PATTERN.fullmatch(text.strip().lower())
        if match is None:
            raise ConfigError(f"unknown device {text!r}: write cpu, cuda:N or hip:N")
        return cls(match[1], int(match[2] or 0))

    @property
    def torch_name(self) -> str:
        """The string that `torch.device` takes."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.index}"
