"""Cache layouts: sizes, and bits equal to GGUF's own quantiser."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from luce_core.errors import ConfigError
from luce_core.huge_pages import HUGE_PAGE
from luce_core.ops.kv_layout import CACHE_TYPES, KvLayout, decode_rows, encode_rows


def rows_to_encode() -> torch.Tensor:
    """Normal rows at many scales, zeros, ties of the largest value, halves, tiny values."""
    made = torch.Generator().manual_seed(1)
    values = torch.randn(400, 128, generator=made) * torch.logspace(-6, 4, 400)[:, None]
    values[0] = 0.0
    values[1, 0::2], values[1, 1::2] = 1.0, -1.0
    values[2] = torch.arange(128) - 63.5
    values[3, :32] = torch.arange(32) * 0.5
    values[4] = 1e-30
    return values


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0"])
def test_encoded_rows_equal_ggufs_bytes(cache_type: str) -> None:
    values = rows_to_encode()
    with np.errstate(all="ignore"):
        kind = gguf.GGMLQuantizationType[cache_type.upper()]
        expected = gguf.quants.quantize(values.numpy(), kind)
    assert np.array_equal(encode_rows(values, cache_type).numpy(), expected)


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0"])
def test_decoded_rows_equal_ggufs_values(cache_type: str) -> None:
    stored = encode_rows(rows_to_encode().view(20, 20, 128), cache_type)
    kind = gguf.GGMLQuantizationType[cache_type.upper()]
    expected = gguf.quants.dequantize(stored.numpy(), kind)
    assert np.array_equal(decode_rows(stored, cache_type).numpy(), expected)


@pytest.mark.parametrize(("cache_type", "dtype"), [("f16", np.float16), ("f32", np.float32)])
def test_plain_types_round_to_nearest(cache_type: str, dtype: type) -> None:
    values = torch.randn(7, 3, 64)
    expected = values.numpy().astype(dtype).astype(np.float32)
    assert np.array_equal(decode_rows(encode_rows(values, cache_type), cache_type), expected)


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_bytes_per_token_is_what_the_cache_takes(cache_type: str) -> None:
    layout = KvLayout(kv_heads=3, head_dim=64, block_size=16, k_type=cache_type, v_type="f16")
    cache = layout.allocate(10)
    assert cache.k.shape[:3] == cache.v.shape[:3] == (11, 16, 3)
    assert cache.k.nbytes + cache.v.nbytes == 11 * 16 * layout.bytes_per_token


def test_unknown_type_and_broken_head_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown cache type 'q5_0': choose from f32, f16"):
        KvLayout(kv_heads=1, head_dim=64, block_size=16, k_type="q5_0")
    with pytest.raises(ConfigError, match="multiple of 32, got 80"):
        KvLayout(kv_heads=1, head_dim=80, block_size=16, v_type="q8_0")


def test_a_large_cache_begins_at_a_huge_page_and_is_zeros() -> None:
    layout = KvLayout(kv_heads=3, head_dim=64, block_size=16, k_type="f16", v_type="q8_0")
    for blocks in (3, 700):
        cache = layout.allocate(blocks)
        for side, kind in ((cache.k, torch.float16), (cache.v, torch.uint8)):
            assert side.shape[:3] == (blocks + 1, 16, 3)
            assert side.dtype is kind
            assert side.is_contiguous()
            assert not side.any()
    large = layout.allocate(2000).k
    assert large.numel() * large.element_size() > HUGE_PAGE
    assert large.data_ptr() % HUGE_PAGE == 0
