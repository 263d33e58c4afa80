"""Large tensors of the host on huge pages: what is read at random places costs fewer address
translations, which under a hypervisor are the better part of reading a small KV cache."""

from __future__ import annotations

import ctypes
import mmap
from math import prod

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only


def zeros_on_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """torch.zeros on the CPU, contiguous. From one huge page on it begins at one, and the kernel
    is asked to use them: a hint, whose failure costs speed only."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < HUGE_PAGE or _ADVICE is None:
        return torch.zeros(shape, dtype=dtype)
    memory = torch.empty(nbytes + HUGE_PAGE, dtype=torch.uint8)
    start = -memory.data_ptr() % HUGE_PAGE
    # What is left over beyond the last whole one would waste most of a huge page.
    whole = nbytes // HUGE_PAGE * HUGE_PAGE
    madvise = ctypes.CDLL(None).madvise
    madvise(ctypes.c_void_p(memory.data_ptr() + start), ctypes.c_size_t(whole), _ADVICE)
    return memory[start : start + nbytes].view(dtype).view(shape).zero_()
