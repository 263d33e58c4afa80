"""The gated delta rule in its chunked form, differentiable and resumable from a state."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 64


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs `[B, T, H, dv]` and the state after the last token, all float32.

    q, k `[B, T, H, dk]` (normalised, q scaled), v `[B, T, H, dv]`, log-decay g and beta
    `[B, T, H]`, state `[B, H, dk, dv]`. Per head and token the recurrent form is
    S <- exp(g) S; d = beta (v - S^T k); S <- S + k d^T; o = S^T q  (Gated DeltaNet, Yang 2024).
    """
    tokens = q.shape[1]
    chunk = min(CHUNK, tokens)
    q, k, v = (_chunks(x, chunk) for x in (q, k, v))
    g, beta = (_chunks(x[..., None], chunk)[..., 0] for x in (g, beta))
    total = g.cumsum(-1)
    above = torch.ones(chunk, chunk, dtype=torch.bool).triu(1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(above, -torch.inf).exp()
    k_beta = k * beta[..., None]
    grown = total.exp()[..., None]
    mixing = (k_beta @ k.transpose(-1, -2) * decay).tril(-1)
    known = torch.cat([v * beta[..., None], k_beta * grown], dim=-1)
    solved = torch.linalg.solve_triangular(mixing, known, upper=False, unitriangular=True)
    values, reads = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    pairs = q @ k.transpose(-1, -2) * decay
    q = q * grown
    last = total[..., -1:]
    k = k * (last - total).exp()[..., None]
    kept = last.exp()[..., None]
    outputs = []
    for index in range(q.shape[2]):
        fresh = values[:, :, index] - reads[:, :, index] @ state
        outputs.append(q[:, :, index] @ state + pairs[:, :, index] @ fresh)
        state = kept[:, :, index] * state + k[:, :, index].transpose(-1, -2) @ fresh
    return torch.cat(outputs, dim=2)[:, :, :tokens].transpose(1, 2), state


def causal_conv(x: Tensor, weight: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise convolution over time, and the inputs that the next call needs before its own.

    x `[B, T, C]`, weight `[C, K]` (the last tap is the present), before `[B, K-1, C]`.
    """
    taps = weight.shape[1]
    tokens = x.shape[1]
    x = torch.cat([before, x], dim=1)
    out = sum(x[:, tap : tap + tokens] * weight[:, tap] for tap in range(taps))
    assert isinstance(out, Tensor)
    return out, x[:, -(taps - 1) :]


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """`[B, T, H, d]` to `[B, H, N, chunk, d]`, padded with zeros: no decay and no update there."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % chunk))
    batch, tokens, heads, width = x.shape
    return x.view(batch, tokens // chunk, chunk, heads, width).permute(0, 3, 1, 2, 4)
