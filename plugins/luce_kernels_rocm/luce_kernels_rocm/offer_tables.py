"""The ops that there are kernels for, and what `register` is told about each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_EVERY_ROW_ALIKE: Mapping[str, Any] = MappingProxyType(
    {"row_invariant": True, "split_invariant": True}
)

CORE_OFFERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "rms_norm": _EVERY_ROW_ALIKE,
    }
)
