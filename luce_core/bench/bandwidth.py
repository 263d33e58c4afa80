"""How fast this host reads memory, and how many bytes of weights a step must read."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from luce_core.weights.gguf_file import GgufFile

_LEAST_BYTES = 64 << 20
_MOST_BYTES = 1 << 30
_READS = 7


def read_bandwidth(size_bytes: int, threads: Iterable[int]) -> dict[int, float]:
    """Bytes a second by thread count: the best of several reads of a buffer of about that size.

    The size matters: weights that fit in a cache are read faster than memory allows.
    """
    values = np.ones(buffer_bytes(size_bytes) // 8, np.int64)
    return {count: values.nbytes / _best_seconds(values, count) for count in threads}


def buffer_bytes(weight_bytes: int) -> int:
    """A buffer's size for measuring how fast weights can be read, within limits."""
    return min(max(weight_bytes, _LEAST_BYTES), _MOST_BYTES)


def _best_seconds(values: NDArray[np.int64], threads: int) -> float:
    parts = np.array_split(values, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_READS):
            started = time.perf_counter()
            # The plainest reduction that numpy vectorises; it runs without the GIL.
            list(pool.map(np.bitwise_or.reduce, parts))
            best = min(best, time.perf_counter() - started)
    return best


def step_bytes(gguf: GgufFile, rows: int) -> int:
    """Bytes of weights that a step of so many rows reads at least.

    The embedding table counts if it is the head as well; of experts, as many as the rows can
    choose.
    """
    experts = gguf.metadata.int(f"{gguf.architecture}.expert_count", 0)
    used = gguf.metadata.int(f"{gguf.architecture}.expert_used_count", 0)
    share = min(1.0, rows * used / experts) if experts else 1.0
    has_head = "output.weight" in gguf.tensors
    total = 0.0
    for name, tensor in gguf.tensors.items():
        if name == "token_embd.weight" and has_head:
            continue
        total += tensor.nbytes * (share if "_exps." in name else 1.0)
    return int(total)
