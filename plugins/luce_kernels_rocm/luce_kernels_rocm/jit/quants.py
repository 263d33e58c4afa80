"""GGUF quant blocks to float32 in registers, for one plane of a weight at a time (`Planes`).

Products sum over the values of a row, so that planes may come one after the other. The formulas
and their order of operations are those of `luce_core.weights.quant`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from luce_core.weights.quant.float4 import IQ4_VALUES
from luce_kernels_rocm.jit.code_fit import fit

_C0, _C1, _C2, _C3, _C4 = (tl.constexpr(c) for c in fit(IQ4_VALUES))


@triton.jit
def values_of(group, at, plane, WIDTH: tl.constexpr, HALF: tl.constexpr, TWO: tl.constexpr):
    """Numbers k in the row of values `at` of groups."""
    e = group * WIDTH + at
    if TWO:
        return e // HALF * (2 * HALF) + plane * HALF + e % HALF
    return e


@triton.jit
def _half(at, inside):
    return tl.load(at.to(tl.pointer_type(tl.float16)), mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _byte(at, inside):
    return tl.load(at, mask=inside, other=0).to(tl.int32)


@triton.jit
def _iq4(code):
    """The IQ4 value of codes 0..15: a polynomial rounded to the nearest whole number."""
    x = code.to(tl.float32)
    return tl.floor((((x * _C4 + _C3) * x + _C2) * x + _C1) * x + _C0 + 0.5)


@triton.jit
def _e2m1_doubled(code):
    """0, 1, 2, 3, 4, 6, 8, 12 and their negatives: the bits of a float32, subnormal for 1."""
    bits = ((code & 7) << 22) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 1.7014118346046923e38  # 2^127


@triton.jit
def _e8m0_halved(code):
    """2^(code - 128), as float32 bits: subnormal below 2."""
    bits = tl.where(code < 2, 0x00200000 << tl.minimum(code, 1), tl.maximum(code - 1, 0) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _rocmfp_scale(code):
    """Half of what e4m3 with bias 7 is; 0 for no valid byte."""
    exponent = code >> 3
    mantissa = code & 7
    bits = ((exponent + 119) << 23) | (mantissa << 20)
    normal = bits.to(tl.float32, bitcast=True)
    scale = tl.where(exponent == 0, mantissa.to(tl.float32) * 0.0009765625, normal)  # 2^-10
    return tl.where(code > 0x7E, 0.0, scale)


@triton.jit
def _fp4_level(code):
    """0, 1, 2, 3, 4, 6, 8, 10 and their negatives."""
    size = code & 7
    size = tl.where(size > 4, 2 * size - 4, size)
    return tl.where(code > 7, -size, size)


@triton.jit
def _six_bits(block, index, inside, IS_MINIMUM: tl.constexpr):
    """Scale or minimum `index` of a q4_k or q5_k block, whose 12 packed bytes begin at 4."""
    own = 4 if IS_MINIMUM else 0
    low_index = index & 3
    first = _byte(block + 4 + own + low_index, inside)
    last = _byte(block + 12 + low_index, inside)
    low = (last >> 4) if IS_MINIMUM else (last & 15)
    return tl.where(index < 4, first & 63, low | ((first >> 2) & 0x30)).to(tl.float32)


@triton.jit
def _codes(at, inside, plane):
    """Four-bit codes of a plane."""
    return (_byte(at, inside) >> (4 * plane)) & 15


@triton.jit
def dequantized(row, group, at, plane, inside, QTYPE: tl.constexpr):
    """Float32 values of groups of a plane; 0 where `inside` is false.

    `row` points to the first byte of a row of blocks; `group` and `at` are numbers as in `Planes`.
    `row`, `group` and `inside` have size 1 in the dimension along which `at` runs.
    """
    if QTYPE == "F32":
        target = row.to(tl.pointer_type(tl.float32)) + group * 32 + at
        return tl.load(target, mask=inside, other=0.0)
    elif QTYPE == "F16":
        target = row.to(tl.pointer_type(tl.float16)) + group * 32 + at
        return tl.load(target, mask=inside, other=0.0).to(tl.float32)
    elif QTYPE == "BF16":
        target = row.to(tl.pointer_type(tl.uint16)) + group * 32 + at
        bits = tl.load(target, mask=inside, other=0).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True)
    elif QTYPE == "Q8_0":
        block = row + group * 34
        code = _byte(block + 2 + at, inside).to(tl.int8).to(tl.float32)
        return code * _half(block, inside)
    elif QTYPE == "Q4_0":
        block = row + group * 18
        code = _codes(block + 2 + at, inside, plane)
        return _half(block, inside) * (code - 8).to(tl.float32)
    elif QTYPE == "Q4_1":
        block = row + group * 20
        code = _codes(block + 4 + at, inside, plane)
        return _half(block, inside) * code.to(tl.float32) + _half(block + 2, inside)
    elif QTYPE == "Q5_0":
        block = row + group * 22
        code = _codes(block + 6 + at, inside, plane)
        high = (_byte(block + 2 + 2 * plane + at // 8, inside) >> (at % 8)) & 1
        return _half(block, inside) * ((code | (high << 4)) - 16).to(tl.float32)
    elif QTYPE == "Q5_1":
        block = row + group * 24
        code = _codes(block + 8 + at, inside, plane)
        high = (_byte(block + 4 + 2 * plane + at // 8, inside) >> (at % 8)) & 1
        scaled = _half(block, inside) * (code | (high << 4)).to(tl.float32)
        return scaled + _half(block + 2, inside)
    elif QTYPE == "IQ4_NL":
        block = row + group * 18
        return _half(block, inside) * _iq4(_codes(block + 2 + at, inside, plane))
    elif QTYPE == "MXFP4":
        block = row + group * 17
        scale = _e8m0_halved(_byte(block, inside))
        return tl.where(inside, scale * _e2m1_doubled(_codes(block + 1 + at, inside, plane)), 0.0)
    elif QTYPE == "ROCMFP4" or QTYPE == "ROCMFP4_FAST":
        IS_FAST: tl.constexpr = QTYPE == "ROCMFP4_FAST"
        block = row + group * (17 if IS_FAST else 18)
        level = _fp4_level(_codes(block + at, inside, plane)).to(tl.float32)
        return level * _rocmfp_scale(_byte(block + 16 + (0 if IS_FAST else plane), inside))
    elif QTYPE == "ROCMFP3":
        block = row + group // 2 * 14
        bit = group % 2 * 48 + at * 3
        # A code may lie across two bytes; after the last one comes a scale, which is cut off.
        low = _byte(block + bit // 8, inside)
        word = low | (_byte(block + bit // 8 + 1, inside) << 8)
        code = (word >> (bit % 8)) & 7
        size = tl.where((code & 3) == 3, 4, code & 3)
        level = tl.where(code > 3, -size, size).to(tl.float32)
        return level * _rocmfp_scale(_byte(block + 12 + group % 2, inside))
    elif QTYPE == "ROCMFP2":
        block = row + group // 2 * 10
        code = _byte(block + group % 2 * 4 + at // 4, inside) >> (2 * (at % 4))
        level = ((code & 3) - 1).to(tl.float32)
        return level * _rocmfp_scale(_byte(block + 8 + group % 2, inside))
    elif QTYPE == "IQ4_XS":
        block = row + group // 8 * 136
        eighth = group % 8
        high = _byte(block + 2 + eighth // 4, inside) >> (2 * (eighth % 4))
        low = _byte(block + 4 + eighth // 2, inside) >> (4 * (eighth % 2))
        scale = ((low & 15) | ((high & 3) << 4)) - 32
        step = _half(block, inside) * scale.to(tl.float32)
        return step * _iq4(_codes(block + 8 + eighth * 16 + at, inside, plane))
    elif QTYPE == "Q6_K":
        block = row + group // 8 * 210
        half = group % 8 // 4
        quarter = group % 4
        low = _codes(block + half * 64 + quarter * 16 + at, inside, plane)
        high = _byte(block + 128 + half * 32 + quarter % 2 * 16 + at, inside)
        high = (high >> (4 * plane + 2 * (quarter // 2))) & 3
        scale = _byte(block + 192 + half * 8 + plane * 4 + quarter, inside).to(tl.int8)
        step = _half(block + 208, inside) * scale.to(tl.float32)
        return step * ((low | (high << 4)) - 32).to(tl.float32)
    else:
        tl.static_assert(QTYPE == "Q4_K" or QTYPE == "Q5_K", "no such quant type")
        quarter = group % 4
        index = 2 * quarter + plane
        if QTYPE == "Q4_K":
            block = row + group // 4 * 144
            code = _codes(block + 16 + quarter * 32 + at, inside, plane)
        else:
            block = row + group // 4 * 176
            code = _codes(block + 48 + quarter * 32 + at, inside, plane)
            code = code | (((_byte(block + 16 + at, inside) >> index) & 1) << 4)
        step = _half(block, inside) * _six_bits(block, index, inside, False)
        least = _half(block + 2, inside) * _six_bits(block, index, inside, True)
        return step * code.to(tl.float32) - least
