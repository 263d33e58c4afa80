"""Ops with a recurrent state by slot: the convolution, the gated delta rule, and their replays."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.kernel import float32_weight
from luce_kernels_cpu.native_op import Arg, Given, NativeOp, cache_address
from luce_kernels_cpu.provider import address
from luce_kernels_cpu.structs import Op, Rows

MOST_KEY_DIM = 1024  # LK_MOST_KEY_DIM


class Slots(c.Structure):
    _fields_ = [("count", c.c_int32), ("log_rows", c.c_int32)]


class CausalConv1dArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("out", Rows),
        ("taps", c.c_void_p),
        ("state", c.c_void_p),
        ("log", c.c_void_p),
        ("channels", c.c_int32),
        ("kernel", c.c_int32),
        ("slots", Slots),
    ]


class ConvReplayArgs(c.Structure):
    _fields_ = [
        ("accepted", c.c_void_p),
        ("log", c.c_void_p),
        ("state", c.c_void_p),
        ("channels", c.c_int32),
        ("kernel", c.c_int32),
        ("slots", Slots),
    ]


class DeltaShape(c.Structure):
    _fields_ = [
        ("key_heads", c.c_int32),
        ("value_heads", c.c_int32),
        ("key_dim", c.c_int32),
        ("value_dim", c.c_int32),
    ]


class GatedDeltaArgs(c.Structure):
    _fields_ = [
        ("qkv", Rows),
        ("alpha", Rows),
        ("beta", Rows),
        ("out", Rows),
        ("rate", c.c_void_p),
        ("bias", c.c_void_p),
        ("state", c.c_void_p),
        ("key_log", c.c_void_p),
        ("delta_log", c.c_void_p),
        ("decay_log", c.c_void_p),
        ("shape", DeltaShape),
        ("eps", c.c_float),
        ("slots", Slots),
    ]


class GatedDeltaReplayArgs(c.Structure):
    _fields_ = [
        ("accepted", c.c_void_p),
        ("key_log", c.c_void_p),
        ("delta_log", c.c_void_p),
        ("decay_log", c.c_void_p),
        ("state", c.c_void_p),
        ("shape", DeltaShape),
        ("slots", Slots),
    ]


def taps_first(weight: Any, device: torch.device) -> Tensor:
    """The convolution's weight [C, K] as [K, C]: a tap of all channels lies in one piece."""
    taps: Tensor = float32_weight(weight, device)
    return taps.t().contiguous()


def accepts_heads(facts: Mapping[str, Any]) -> bool:
    return bool(facts["key_dim"] <= MOST_KEY_DIM)


def _slots(state: Tensor, log: Tensor) -> Slots:
    return Slots(state.shape[0], log.shape[1])


def _shape(facts: Mapping[str, Any]) -> DeltaShape:
    return DeltaShape(
        facts["key_heads"], facts["value_heads"], facts["key_dim"], facts["value_dim"]
    )


def _causal_conv1d(given: Given) -> c.Structure:
    state, log = given.tensors["conv_state"], given.tensors["conv_log"]
    return CausalConv1dArgs(
        given.rows["x"],
        given.rows["out"],
        address(given.tensors["weight"]),
        cache_address(state),
        cache_address(log),
        given.facts["channels"],
        given.facts["kernel"],
        _slots(state, log),
    )


def _conv_replay(given: Given) -> c.Structure:
    state, log = given.tensors["conv_state"], given.tensors["conv_log"]
    return ConvReplayArgs(
        cache_address(given.tensors["accepted"], torch.int32),
        cache_address(log),
        cache_address(state),
        given.facts["channels"],
        given.facts["kernel"],
        _slots(state, log),
    )


def _logs(given: Given) -> tuple[int, int, int]:
    key_log, delta_log, decay_log = (
        cache_address(given.tensors[name]) for name in ("key_log", "delta_log", "decay_log")
    )
    return key_log, delta_log, decay_log


def _gated_delta(given: Given) -> c.Structure:
    state = given.tensors["delta_state"]
    return GatedDeltaArgs(
        *(given.rows[name] for name in ("qkv", "alpha", "beta", "out")),
        address(given.tensors["ssm_a"]),
        address(given.tensors["dt_bias"]),
        cache_address(state),
        *_logs(given),
        _shape(given.facts),
        given.facts["eps"],
        _slots(state, given.tensors["key_log"]),
    )


def _gated_delta_replay(given: Given) -> c.Structure:
    state = given.tensors["delta_state"]
    return GatedDeltaReplayArgs(
        cache_address(given.tensors["accepted"], torch.int32),
        *_logs(given),
        cache_address(state),
        _shape(given.facts),
        _slots(state, given.tensors["key_log"]),
    )


STATE_OPS = (
    NativeOp(
        name="causal_conv1d",
        code=Op.CAUSAL_CONV1D,
        args={
            "x": Arg.TOKENS,
            "batch": Arg.BATCH,
            "conv_state": Arg.MOVED,
            "conv_log": Arg.WRITTEN,
            "weight": Arg.WEIGHT,
            "out": Arg.TOKENS,
        },
        fill=_causal_conv1d,
        offer={"prepare": taps_first},
    ),
    NativeOp(
        name="conv_replay",
        code=Op.CONV_REPLAY,
        args={
            "batch": Arg.BATCH,
            "accepted": Arg.READ,
            "conv_log": Arg.READ,
            "conv_state": Arg.MOVED,
        },
        fill=_conv_replay,
    ),
    NativeOp(
        name="gated_delta",
        code=Op.GATED_DELTA,
        args={
            "qkv": Arg.TOKENS,
            "alpha": Arg.TOKENS,
            "beta": Arg.TOKENS,
            "batch": Arg.BATCH,
            "delta_state": Arg.MOVED,
            "key_log": Arg.WRITTEN,
            "delta_log": Arg.WRITTEN,
            "decay_log": Arg.WRITTEN,
            "ssm_a": Arg.WEIGHT,
            "dt_bias": Arg.WEIGHT,
            "out": Arg.TOKENS,
        },
        fill=_gated_delta,
        offer={"accepts": accepts_heads},
    ),
    NativeOp(
        name="gated_delta_replay",
        code=Op.GATED_DELTA_REPLAY,
        args={
            "batch": Arg.BATCH,
            "accepted": Arg.READ,
            "key_log": Arg.READ,
            "delta_log": Arg.READ,
            "decay_log": Arg.READ,
            "delta_state": Arg.MOVED,
        },
        fill=_gated_delta_replay,
        offer={"accepts": accepts_heads},
    ),
)
