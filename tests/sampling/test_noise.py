from __future__ import annotations

import math

import pytest
import torch

from luce_core.sampling.noise import GumbelNoise, row_key

M64 = (1 << 64) - 1
VOCAB = 1001


def _splitmix(value: int) -> int:
    """SplitMix64's finaliser on plain integers, written from its publication."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & M64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & M64
    return value ^ (value >> 31)


def _keys(*triples: tuple[int, int, int]) -> torch.Tensor:
    return torch.tensor([row_key(*t) for t in triples], dtype=torch.int64)


def test_splitmix_reference_value() -> None:
    # First output of SplitMix64 seeded with 0, as in the published test vectors.
    assert _splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("seed", [0, 7, 1 << 63, M64])
def test_noise_is_the_integer_hash_of_key_and_token(seed: int) -> None:
    key = row_key(seed, 2, 5)
    noise = GumbelNoise(VOCAB).rows(torch.tensor([key]))[0]
    for token in (0, 1, 2, 499, 999, 1000):
        hashed = _splitmix(((key & M64) + (token // 2 + 1) * 0x9E3779B97F4A7C15) & M64)
        bits = (hashed >> 32 * (token % 2)) & 0xFFFFFFFF
        uniform = ((bits ^ 0x80000000) + 0.5) / 2**32
        assert noise[token].item() == pytest.approx(-math.log(-math.log(uniform)), rel=1e-6)


def test_sparse_noise_has_the_bits_of_dense_noise() -> None:
    source = GumbelNoise(VOCAB)
    keys = _keys((1, 0, 0), (1, 0, 1), (M64, 3, 9))
    rows = source.rows(keys)
    row, token = (torch.arange(3 * VOCAB).view(3, VOCAB) % 7 < 2).nonzero(as_tuple=True)
    assert torch.equal(source.at(keys[row], token), rows[row, token])


def test_row_bits_do_not_depend_on_the_batch() -> None:
    source = GumbelNoise(49_152)
    keys = _keys(*[(seed, 0, 3) for seed in range(9)])
    together = source.rows(keys)
    for i in range(9):
        assert torch.equal(source.rows(keys[i : i + 1])[0], together[i])


def test_noise_is_gumbel_distributed_and_bounded() -> None:
    noise = GumbelNoise(4096).rows(_keys(*[(s, 0, 0) for s in range(64)])).double().flatten()
    uniform = (-(-noise).exp()).exp().sort().values
    steps = torch.arange(1, len(uniform) + 1) / len(uniform)
    kolmogorov = float((uniform - steps).abs().max()) * math.sqrt(len(uniform))
    assert kolmogorov < 1.95  # p = 0.001
    assert noise.min() > -3.13
    assert noise.max() < 22.88


def test_noise_cannot_bridge_the_gap_at_which_filters_drop_tokens() -> None:
    lowest = -math.log(-math.log(0.5 / 2**32))
    highest = -math.log(-math.log1p(-0.5 / 2**32))
    assert highest - lowest < 44 * math.log(2)


def test_seeds_choices_positions_and_tokens_are_independent() -> None:
    """No two rows that differ in one number correlate, at lag 0 or between neighbouring tokens."""
    triples = [(s, 0, 0) for s in (0, 1, 2, 1 << 32, 1 << 63, M64)]
    triples += [(0, c, 0) for c in (1, 2, 3)] + [(0, 0, p) for p in (1, 2, 3, 1000)]
    triples += [(1, 1, 0), (1, 0, 1), (0, 1, 1)]
    size = 65_536
    rows = GumbelNoise(size).rows(_keys(*triples)).double()
    for lag in (0, 1, 2):
        matrix = torch.corrcoef(torch.cat([rows, rows.roll(lag, 1)]))[: len(rows), len(rows) :]
        if lag == 0:
            matrix = matrix - torch.eye(len(rows), dtype=torch.float64)
        assert matrix.abs().max() < 4.5 / math.sqrt(size)


def test_distinct_inputs_give_distinct_keys() -> None:
    triples = {(s, c, p) for s in range(40) for c in range(8) for p in range(40)}
    assert len({row_key(*t) for t in triples}) == len(triples)
