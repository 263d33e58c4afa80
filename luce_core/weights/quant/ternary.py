"""Blocks of 256 values of -1, 0 or 1 times one fp16 scale d."""

from __future__ import annotations

import torch
from torch import Tensor

from luce_core.weights.quant.bits import half, shifted


def tq1_0(blocks: Tensor) -> Tensor:
    """qs[48] qh[4] d[2]; a byte is a base-3 fraction of five digits (four in qh).

    Multiplying by 3^k drops the digits before k (bytes wrap); three times the rest, over 256, is
    digit k.
    """
    fields = (blocks[:, 0:32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4)
    digits = [(field * 3**k).int() for field, count in fields for k in range(count)]
    q = (torch.cat(digits, dim=1) * 3 >> 8).float() - 1
    return half(blocks, 52) * q


def tq2_0(blocks: Tensor) -> Tensor:
    """qs[64] d[2]; of each 32 bytes the lowest bit pairs come first; value = d (q - 1)."""
    q = shifted(blocks[:, 0:64].view(-1, 2, 32), range(0, 8, 2), 3, dim=2).flatten(1)
    return half(blocks, 64) * (q.float() - 1)
