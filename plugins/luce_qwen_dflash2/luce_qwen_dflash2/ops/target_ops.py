"""The ops of the target model, for `luce_register_ops`."""

from __future__ import annotations

from luce_qwen_dflash2.ops import (
    affine,
    causal_conv1d,
    conv_replay,
    gated_delta,
    gated_delta_replay,
    gated_rms_norm,
    moe_scale,
    sigmoid_gate,
)

TARGET_OPS = tuple(
    module.SPEC
    for module in (
        causal_conv1d,
        gated_delta,
        conv_replay,
        gated_delta_replay,
        gated_rms_norm,
        sigmoid_gate,
        affine,
        moe_scale,
    )
)
