"""Rope against transformers, bit for bit, for each scaling; pairs against complex rotation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from luce_core.device import Device
from luce_core.errors import ConfigError
from luce_core.ops.core_ops import core_registry
from luce_core.ops.registry import OpBinder
from luce_core.ops.rope_frequencies import OPTIONAL_FACTS, rope_frequencies

POSITIONS = torch.tensor([0, 1, 5, 63, 64, 100, 2047, 8000], dtype=torch.int32)
BASE = {"rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}

PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({"rope_type": "default"}, {}),
    "linear": ({"rope_type": "linear", "factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
    "llama3": (LLAMA3, {"scaling": "llama3", "factor": 8.0, "original_context": 1024}),
    "yarn": (YARN, {"scaling": "yarn", "factor": 4.0, "original_context": 512}),
    "yarn with attention factor": (
        {**YARN, "attention_factor": 0.7, "beta_fast": 16.0, "beta_slow": 2.0},
        {
            "scaling": "yarn",
            "factor": 4.0,
            "original_context": 512,
            "attention_factor": 0.7,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        },
    ),
}


def binder() -> OpBinder:
    return core_registry().binder(Device.parse("cpu"), torch.float32)


@pytest.mark.parametrize("name", PAIRS)
def test_rope_equals_transformers_bit_for_bit(name: str) -> None:
    parameters, facts = PAIRS[name]
    config = LlamaConfig(
        hidden_size=3 * 64,
        num_attention_heads=3,
        head_dim=64,
        max_position_embeddings=4096,
        rope_parameters={**BASE, **parameters},
    )
    q = torch.randn(len(POSITIONS), 3, 64, generator=torch.Generator().manual_seed(3))
    cos, sin = LlamaRotaryEmbedding(config)(q, POSITIONS[None].long())
    expected, _ = apply_rotary_pos_emb(q.transpose(0, 1)[None], q.transpose(0, 1)[None], cos, sin)
    rope = binder().bind("rope", rotary_dim=64, interleaved=False, theta=10000.0, **facts)
    assert torch.equal(rope(q, POSITIONS), expected[0].transpose(0, 1))


def test_interleaved_pairs_turn_as_complex_numbers() -> None:
    x = torch.randn(len(POSITIONS), 2, 64)
    rope = binder().bind("rope", rotary_dim=32, interleaved=True, theta=500000.0)
    got = rope(x, POSITIONS)
    frequencies = 500000.0 ** (-torch.arange(0, 32, 2).double() / 32)
    turn = torch.polar(torch.ones(()).double(), POSITIONS[:, None, None] * frequencies)
    pairs = torch.view_as_complex(x[..., :32].double().unflatten(-1, (-1, 2)))
    expected = torch.view_as_real(pairs * turn).flatten(-2)
    torch.testing.assert_close(got[..., :32].double(), expected, atol=2e-3, rtol=0)
    torch.testing.assert_close(got[:5, :, :32].double(), expected[:5], atol=2e-5, rtol=0)
    assert torch.equal(got[..., 32:], x[..., 32:])


def test_a_files_frequency_factors_divide() -> None:
    facts = {**OPTIONAL_FACTS, "rotary_dim": 8, "theta": 100.0}
    plain, _ = rope_frequencies(facts)
    divided, _ = rope_frequencies({**facts, "freq_factors": (1.0, 2.0, 4.0, 8.0)})
    assert torch.equal(divided, plain / torch.tensor([1.0, 2.0, 4.0, 8.0]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rotary_dim": 7}, "must be even"),
        ({"scaling": "longrope"}, "unknown scaling 'longrope', choose from none, linear"),
        ({"scaling": "yarn"}, "yarn needs original_context"),
        ({"factor": 0.0}, "must be positive"),
        ({"freq_factors": (1.0,)}, "1 frequency factors for 4 pairs"),
    ],
)
def test_facts_that_make_no_rotation_are_refused(changed: dict[str, Any], message: str) -> None:
    facts = {"rotary_dim": 8, "interleaved": False, "theta": 100.0, **changed}
    with pytest.raises(ConfigError, match=message):
        binder().bind("rope", **facts)
