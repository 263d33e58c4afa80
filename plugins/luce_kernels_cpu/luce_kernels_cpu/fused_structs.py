"""The records of csrc/fused_ops.h as ctypes."""

from __future__ import annotations

import ctypes as c

from luce_kernels_cpu.structs import Quantized, Rows


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
