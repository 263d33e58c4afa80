"""Super-blocks of 256 values whose groups of 8 (4 for IQ3) are entries of a code book.

`grid` entries are magnitudes for IQ2 and IQ3, with signs stored beside them; IQ1 entries are -1, 0
or 1, moved by an eighth up or down.
"""

from __future__ import annotations

import torch
from torch import Tensor

from luce_core.weights.quant.bits import bit_rows, half, shifted, u16, u32
from luce_core.weights.quant.grids import code_book, even_signs

_IQ1_DELTA = 0.125


def iq2_xxs(blocks: Tensor) -> Tensor:
    """d[2], then per group of 32: codes[4], and a word of 4 x 7 sign bits and a 4-bit scale s.

    value = d (1/2 + s) / 4 * grid * sign.
    """
    word = u32(blocks, 2, 16).view(-1, 8, 2)[..., 1]
    codes = blocks[:, 2:66].view(-1, 8, 2, 4)[:, :, 0]
    step = half(blocks, 0) * (0.5 + (word >> 28).float()) * 0.25
    signs = even_signs(shifted(word, range(0, 28, 7), 0x7F, dim=2))
    return (step[..., None, None] * code_book("IQ2_XXS", codes) * signs).flatten(1)


def iq2_xs(blocks: Tensor) -> Tensor:
    """d[2] words[64] scales[8]; a 16-bit word: 9 bits of code, 7 sign bits; a scale per 16."""
    words = u16(blocks, 2, 32).view(-1, 16, 2)
    step = half(blocks, 0) * (0.5 + _scale_nibbles(blocks[:, 66:74])) * 0.25
    entries = code_book("IQ2_XS", words & 0x1FF)
    return (step[..., None, None] * entries * even_signs(words >> 9)).flatten(1)


def iq2_s(blocks: Tensor) -> Tensor:
    """d[2] qs[32] signs[32] qh[8] scales[8]; 10-bit codes, one sign bit a value."""
    high = shifted(blocks[:, 66:74], range(0, 8, 2), 3, dim=2).flatten(1)
    codes = (blocks[:, 2:34].int() | (high.int() << 8)).view(-1, 16, 2)
    signs = 1 - 2 * bit_rows(blocks[:, 34:66]).view(-1, 16, 2, 8).float()
    step = half(blocks, 0) * (0.5 + _scale_nibbles(blocks[:, 74:82])) * 0.25
    return (step[..., None, None] * code_book("IQ2_S", codes) * signs).flatten(1)


def iq3_xxs(blocks: Tensor) -> Tensor:
    """d[2] qs[64] words[32]; a word per 32 values: 4 x 7 sign bits and a 4-bit scale s.

    value = d (1/2 + s) / 2 * grid * sign.
    """
    word = u32(blocks, 66, 8)
    step = half(blocks, 0) * (0.5 + (word >> 28).float()) * 0.5
    signs = even_signs(shifted(word, range(0, 28, 7), 0x7F, dim=2))
    entries = code_book("IQ3_XXS", blocks[:, 2:66]).view(-1, 8, 4, 8)
    return (step[..., None, None] * entries * signs).flatten(1)


def iq3_s(blocks: Tensor) -> Tensor:
    """d[2] qs[64] qh[8] signs[32] scales[4]; 9-bit codes; value = d (1 + 2 s) * grid * sign."""
    high = bit_rows(blocks[:, 66:74]).flatten(1)
    codes = blocks[:, 2:66].int() | (high.int() << 8)
    signs = 1 - 2 * bit_rows(blocks[:, 74:106]).view(-1, 8, 4, 8).float()
    step = half(blocks, 0) * (1 + 2 * _scale_nibbles(blocks[:, 106:110]))
    entries = code_book("IQ3_S", codes).view(-1, 8, 4, 8)
    return (step[..., None, None] * entries * signs).flatten(1)


def iq1_s(blocks: Tensor) -> Tensor:
    """d[2] qs[32] qh[16]; value = d (2 s + 1) (grid + delta).

    A 16-bit word of qh per 32 values: 4 x 3 code bits, a 3-bit scale s, delta's sign.
    """
    word = u16(blocks, 34, 8)
    step = half(blocks, 0) * (2 * ((word >> 12) & 7) + 1).float()
    delta = _delta(word & 0x8000)
    high = shifted(word, range(0, 12, 3), 7, dim=2).flatten(1)
    codes = (blocks[:, 2:34].int() | (high << 8)).view(-1, 8, 4)
    return (step[..., None, None] * (code_book("IQ1_S", codes) + delta[..., None, None])).flatten(1)


def iq1_m(blocks: Tensor) -> Tensor:
    """qs[32] qh[16] scales[8]; qh holds 3 code bits and delta's sign for each 8 values.

    A 16-bit word of scales holds 4 x 3 bits, one per 16 values; the top nibbles of the four words
    are, lowest first, the fp16 scale d. value = d (2 s + 1) (grid + delta).
    """
    words = u16(blocks, 48, 4)
    parts = [(words[:, i] >> 12) << (4 * i) for i in range(4)]
    d = (parts[0] | parts[1] | parts[2] | parts[3]).to(torch.int16).view(torch.float16).float()
    scales = shifted(words, range(0, 12, 3), 7, dim=2).flatten(1)
    step = d[:, None] * (2 * scales + 1).float()
    qh = shifted(blocks[:, 32:48], range(0, 8, 4), 15, dim=2).flatten(1).int()
    codes = (blocks[:, 0:32].int() | ((qh & 7) << 8)).view(-1, 16, 2)
    delta = _delta(qh & 8).view(-1, 16, 2, 1)
    return (step[..., None, None] * (code_book("IQ1_M", codes) + delta)).flatten(1)


def _scale_nibbles(field: Tensor) -> Tensor:
    """Two scales a byte, low nibble first, as float32."""
    return shifted(field, range(0, 8, 4), 15, dim=2).flatten(1).float()


def _delta(negative: Tensor) -> Tensor:
    return torch.where(negative == 0, _IQ1_DELTA, -_IQ1_DELTA)
