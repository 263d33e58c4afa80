"""What `bind` refuses. ConfigError names the op, and the fact or the weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce_core.errors import ConfigError
from luce_core.ops.spec import OpSpec


def complete_facts(spec: OpSpec, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with the defaults of those that are optional."""
    known = (*spec.facts, *spec.optional_facts)
    for name in facts:
        if name not in known:
            raise ConfigError(f"op {spec.name}: unknown fact {name!r}, it knows {list(known)}")
    missing = [name for name in spec.facts if name not in facts]
    if missing:
        raise ConfigError(f"op {spec.name}: missing facts {missing}")
    return {**spec.optional_facts, **facts}


def check_weights(spec: OpSpec, weights: tuple[Any, ...]) -> None:
    """As many as the op takes, and only optional ones None."""
    expected = spec.weight_args
    if len(weights) != len(expected):
        names = [arg.name for arg in expected]
        raise ConfigError(f"op {spec.name}: takes weights {names}, got {len(weights)}")
    for arg, weight in zip(expected, weights, strict=True):
        if weight is None and not arg.optional:
            raise ConfigError(f"op {spec.name}: weight {arg.name} is missing")
