"""The records of csrc/fused_ops.h as ctypes."""

from __future__ import annotations

import ctypes as c

from luce_kernels_cpu.structs import Quantized, RopeWriteArgs, Rows


class Projection(c.Structure):
    _fields_ = [("weight", c.c_void_p), ("xq", Quantized), ("bias", c.c_void_p)]


class GateUpArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("gate", Projection),
        ("up", Projection),
        ("limit", c.c_float),
        ("out", Rows),
        ("quantized", Quantized),
    ]


class TurnsArgs(c.Structure):
    _fields_ = [
        ("inv_freq", c.c_void_p),
        ("pairs", c.c_int32),
        ("interleaved", c.c_int32),
        ("factor", c.c_float),
        ("out", Rows),
    ]


class ProjectHeadsArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("q", Projection),
        ("k", Projection),
        ("v", Projection),
        ("heads", RopeWriteArgs),
        ("turns", Rows),
        ("arrived", c.c_void_p),
    ]


class HeadTokenArgs(c.Structure):
    _fields_ = [
        ("x", Rows),
        ("head", Projection),
        ("logits", Rows),
        ("tokens", c.c_void_p),
        ("best", c.c_void_p),
        ("arrived", c.c_void_p),
    ]


def turn_width(pairs: int, interleaved: bool) -> int:
    """LK_TURN_WIDTH: floats of a row's cosines, and of its sines."""
    return -(-pairs * (2 if interleaved else 1) // 16) * 16
