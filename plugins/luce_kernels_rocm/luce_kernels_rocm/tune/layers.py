"""The layers of a model file whose tiles are worth tuning."""

from __future__ import annotations

from collections.abc import Iterator

from luce_core.weights.gguf_file import GgufFile
from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.quant_table import QUANTS
from luce_kernels_rocm.tune.candidates import (
    Candidates,
    attention_candidates,
    narrow_candidates,
    tiled_candidates,
)


def candidates_of(gguf: GgufFile, arch: Arch, only: str = "") -> tuple[Candidates, ...]:
    """For each distinct layer of the file, of kernels that have `only` in their name."""
    found = {candidates.key: candidates for candidates in _all(gguf, arch)}
    return tuple(each for key, each in found.items() if only in key.kernel)


def _all(gguf: GgufFile, arch: Arch) -> Iterator[Candidates]:
    for tensor in gguf.tensors.values():
        if len(tensor.shape) == 2 and tensor.qtype.name in QUANTS and tensor.qtype.name != "F32":
            n, k = tensor.shape
            yield narrow_candidates(arch, tensor.qtype.name, n, k)
            yield tiled_candidates(arch, tensor.qtype.name, n, k)
    metadata, name = gguf.metadata, gguf.architecture
    heads = metadata.int(f"{name}.attention.head_count")
    kv_heads = metadata.int(f"{name}.attention.head_count_kv", heads)
    width = metadata.int(f"{name}.embedding_length")
    head_dim = metadata.int(f"{name}.attention.key_length", width // heads)
    group = 1 << (heads // kv_heads - 1).bit_length()
    for kernel in ("decode_attention", "prefill_attention"):
        yield attention_candidates(arch, kernel, group, head_dim)
