"""Cosine and sine without the local memory that the libraries' argument reduction takes."""

from __future__ import annotations

import triton
import triton.language as tl

TWO_OVER_PI = tl.constexpr(0.6366197723675814)
HALF_PI = tl.constexpr(1.5707963267948966)


@triton.jit
def cos_sin(angle):
    """(cos, sin) of float32 angles, right to a few units in the last place up to 2^24.

    Quarter turns are taken off in float64, where the product is exact enough for such angles. The
    polynomials for -pi/4..pi/4 are those of Cephes (S. Moshier, cosf.c and sinf.c).
    """
    wide = angle.to(tl.float64)
    quarters = tl.floor(wide * TWO_OVER_PI + 0.5)
    rest = (wide - quarters * HALF_PI).to(tl.float32)
    quadrant = quarters.to(tl.int32) & 3
    square = rest * rest
    sine = -1.9515295891e-4 * square + 8.3321608736e-3
    sine = (sine * square - 1.6666654611e-1) * square * rest + rest
    cosine = 2.443315711809948e-5 * square - 1.388731625493765e-3
    cosine = (cosine * square + 4.166664568298827e-2) * square * square - 0.5 * square + 1.0
    is_odd = (quadrant & 1) != 0
    cos = tl.where(is_odd, sine, cosine)
    sin = tl.where(is_odd, cosine, sine)
    cos = tl.where((quadrant == 1) | (quadrant == 2), -cos, cos)
    sin = tl.where(quadrant >= 2, -sin, sin)
    return cos, sin
