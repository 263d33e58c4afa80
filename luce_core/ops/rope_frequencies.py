"""Rope facts -> the angle per position of each pair, computed once at bind for all providers.

`scaling` is one of:
* `none`: theta^(-2i / rotary_dim);
* `linear`: all divided by `factor` (position interpolation, arXiv 2306.15595);
* `llama3`: wavelengths over original_context / low_freq_factor divided by `factor`, those under
  original_context / high_freq_factor kept, linear between (Llama 3.1 reference code);
* `yarn`: a ramp over pair numbers between kept and divided (NTK by parts, arXiv 2309.00071), and
  cos and sin times `attention_factor`, by default 0.1 ln(factor) + 1.
`freq_factors` are the divisors of a file's `rope_freqs` tensor; they apply to any scaling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from luce_core.errors import ConfigError

OPTIONAL_FACTS: Mapping[str, Any] = MappingProxyType(
    {
        "scaling": "none",
        "factor": 1.0,
        "original_context": None,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": None,
        "freq_factors": None,
    }
)
SCALINGS = ("none", "linear", "llama3", "yarn")


def rope_constants(facts: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """What a rope kernel gets: inv_freq [rotary_dim / 2] float32, attention_factor, rotary_dim,
    interleaved. ConfigError if the facts do not make a rotation."""
    inv_freq, attention_factor = rope_frequencies(facts)
    return {
        "inv_freq": inv_freq.to(device),
        "attention_factor": attention_factor,
        "rotary_dim": facts["rotary_dim"],
        "interleaved": facts["interleaved"],
    }


def rope_frequencies(facts: Mapping[str, Any]) -> tuple[Tensor, float]:
    """(inv_freq [rotary_dim / 2] float32 on the CPU, factor on cos and sin)."""
    rotary_dim = facts["rotary_dim"]
    if rotary_dim < 2 or rotary_dim % 2:
        raise ConfigError(f"rope: rotary_dim must be even and at least 2, got {rotary_dim}")
    scaling, factor = facts["scaling"], facts["factor"]
    if scaling not in SCALINGS:
        raise ConfigError(f"rope: unknown scaling {scaling!r}, choose from {', '.join(SCALINGS)}")
    if not factor > 0:
        raise ConfigError(f"rope: scaling factor must be positive, got {factor}")
    if scaling in ("llama3", "yarn") and not facts["original_context"]:
        raise ConfigError(f"rope: scaling {scaling} needs original_context")
    powers = facts["theta"] ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim)
    inv_freq = 1.0 / powers
    attention_factor = 1.0
    if scaling == "linear":
        inv_freq = inv_freq / factor
    elif scaling == "llama3":
        inv_freq = _llama3(inv_freq, facts)
    elif scaling == "yarn":
        inv_freq = _yarn(powers, facts)
        attention_factor = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    if facts["attention_factor"] is not None:
        attention_factor = facts["attention_factor"]
    if facts["freq_factors"] is not None:
        divisors = torch.tensor(facts["freq_factors"], dtype=torch.float32)
        if divisors.shape != inv_freq.shape:
            raise ConfigError(
                f"rope: {divisors.numel()} frequency factors for {inv_freq.numel()} pairs"
            )
        inv_freq = inv_freq / divisors
    return inv_freq, attention_factor


def _llama3(inv_freq: Tensor, facts: Mapping[str, Any]) -> Tensor:
    context, factor = facts["original_context"], facts["factor"]
    low, high = facts["low_freq_factor"], facts["high_freq_factor"]
    wavelength = 2 * math.pi / inv_freq
    smooth = (context / wavelength - low) / (high - low)
    between = (1 - smooth) * (inv_freq / factor) + smooth * inv_freq
    scaled = torch.where(wavelength > context / low, inv_freq / factor, between)
    return torch.where(wavelength < context / high, inv_freq, scaled)


def _yarn(powers: Tensor, facts: Mapping[str, Any]) -> Tensor:
    dim, context, theta = facts["rotary_dim"], facts["original_context"], facts["theta"]

    def pair_with_turns(turns: float) -> float:
        return float(dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta)))

    low = max(math.floor(pair_with_turns(facts["beta_fast"])), 0)
    high = min(math.ceil(pair_with_turns(facts["beta_slow"])), dim - 1)
    span = max(high - low, 0.001)
    ramp = ((torch.arange(dim // 2).float() - low) / span).clamp(0, 1)
    kept, divided = 1.0 / powers, 1.0 / (facts["factor"] * powers)
    blended: Tensor = divided * ramp + kept * (1 - ramp)
    return blended
