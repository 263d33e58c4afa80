"""torch's dtypes as triton names them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
import triton.language as tl

TRITON_DTYPES: Mapping[torch.dtype, tl.dtype] = MappingProxyType(
    {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
)
