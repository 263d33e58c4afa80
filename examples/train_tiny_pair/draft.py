"""The draft: a DFlash 2 block-diffusion model on the target's hidden states.

Parameter names are those of the published checkpoints. It has neither embedding nor output head:
both are the target's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data import VOCAB
from .rope import rotate
from .target import Mlp, PlainNorm


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Sizes. `taps` are the target layers whose outputs are the features (counted from 0)."""

    vocab: int = VOCAB
    width: int = 256
    ff: int = 512
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rope_base: float = 10_000.0
    window: int = 256
    block: int = 8
    taps: tuple[int, ...] = (1, 3, 5, 6)
    conv: int = 2
    conv_group: int = 16
    rank: int = 64
    top_k: int = 16
    context: int = 1024
    eps: float = 1e-6


Injected = tuple[tuple[Tensor, Tensor], ...]


class DynamicConv(nn.Module):
    """Causal depthwise convolutions inside a block, with kernels made from the block itself."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.taps, self.group = config.conv, config.conv_group
        groups = config.width // config.conv_group
        base = torch.zeros(2, config.conv, config.width)
        base[:, 0] = 1
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(config.width, 2 * config.conv * groups, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def kernels(self, u: Tensor) -> Tensor:
        """`[2, ..., rows, taps, width]`: before and after the sublayer, from its input `u`."""
        deltas = self.kernel_projection(u).float()
        deltas = deltas.view(*u.shape[:-1], 2, self.taps, u.shape[-1] // self.group)
        kernels = deltas.repeat_interleave(self.group, dim=-1) + self.base_kernel
        return kernels.movedim(-3, 0)

    def convolve(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Sum over taps of kernel * the row that many rows earlier; x `[..., rows, width]`."""
        out = kernel[..., 0, :] * x
        for tap in range(1, self.taps):
            out = out + kernel[..., tap, :] * F.pad(x, (0, 0, tap, 0))[..., : x.shape[-2], :]
        return out


class BlockAttention(nn.Module):
    """Attention of a block's rows to the injected context and to the whole block."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        heads, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.width, heads, bias=False)
        self.k_proj = nn.Linear(config.width, kv, bias=False)
        self.v_proj = nn.Linear(config.width, kv, bias=False)
        self.o_proj = nn.Linear(heads, config.width, bias=False)
        self.q_norm = PlainNorm(config.head_dim, config.eps)
        self.k_norm = PlainNorm(config.head_dim, config.eps)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, Hkv, T, D]` each, of x `[B, T, width]` at positions `[T]` or `[B, T]`."""
        batch, tokens, _ = x.shape
        k = self.k_norm(self.k_proj(x).view(batch, tokens, -1, self.config.head_dim))
        k = rotate(k, positions, self.config.head_dim, self.config.rope_base)
        v = self.v_proj(x).view(batch, tokens, -1, self.config.head_dim).float()
        return k.transpose(1, 2), v.transpose(1, 2)

    def forward(
        self, x: Tensor, positions: Tensor, context: tuple[Tensor, Tensor], visible: Tensor
    ) -> Tensor:
        """x `[B, N * block, width]`: N blocks of each sequence, at positions `[B, N * block]`.

        context: keys and values `[B, Hkv, T, D]`; visible `[B, 1, N * block, T + N * block]`.
        """
        batch, rows, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, rows, -1, self.config.head_dim))
        q = rotate(q, positions, self.config.head_dim, self.config.rope_base).transpose(1, 2)
        k, v = self.keys_values(x, positions)
        keys, values = torch.cat([context[0], k], dim=2), torch.cat([context[1], v], dim=2)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, rows, -1))


class DraftLayer(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.block = config.block
        self.input_layernorm = PlainNorm(config.width, config.eps)
        self.post_attention_layernorm = PlainNorm(config.width, config.eps)
        self.self_attn = BlockAttention(config)
        self.mlp = Mlp(config.width, config.ff)
        self.attention_conv = DynamicConv(config)
        self.mlp_conv = DynamicConv(config)

    def forward(
        self, x: Tensor, positions: Tensor, context: tuple[Tensor, Tensor], visible: Tensor
    ) -> Tensor:
        """x `[B, N, block, width]`."""
        batch, count, block, width = x.shape
        u = self.input_layernorm(x)
        before, after = self.attention_conv.kernels(u)
        mixed = self.attention_conv.convolve(u, before).view(batch, count * block, width)
        mixed = self.self_attn(mixed, positions, context, visible).view(x.shape)
        x = x + self.attention_conv.convolve(mixed, after)
        u = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.kernels(u)
        return x + self.mlp_conv.convolve(self.mlp(self.mlp_conv.convolve(u, before)), after)


class Selector(nn.Module):
    """Pair scores <A[previous] * W h, B[candidate]> that are added to the candidates' logits."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Embedding(config.vocab, config.rank)
        self.successor_codebook = nn.Embedding(config.vocab, config.rank)
        self.hidden_projection = nn.Linear(config.width, config.rank, bias=False)
        nn.init.normal_(self.predecessor_codebook.weight, std=0.5)
        nn.init.zeros_(self.successor_codebook.weight)

    def forward(self, hidden: Tensor, previous: Tensor, candidates: Tensor) -> Tensor:
        """Scores `[..., K]` of hidden `[..., width]`, previous `[...]`, candidates `[..., K]`."""
        key = self.predecessor_codebook(previous) * self.hidden_projection(hidden).float()
        return torch.einsum("...r,...kr->...k", key, self.successor_codebook(candidates))


class Draft(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.taps) * config.width, config.width, bias=False)
        self.hidden_norm = PlainNorm(config.width, config.eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.layers))
        self.norm = PlainNorm(config.width, config.eps)
        self.candidate_selector = Selector(config)

    def inject(self, features: Tensor, start: int = 0) -> Injected:
        """Each layer's keys and values of features `[B, T, n * width]` at positions from start."""
        context = self.hidden_norm(self.fc(features))
        positions = torch.arange(start, start + features.shape[1])
        return tuple(layer.self_attn.keys_values(context, positions) for layer in self.layers)

    def forward(self, embedded: Tensor, anchors: Tensor, context: Injected) -> Tensor:
        """Hidden states `[B, N, block, width]` of N blocks per sequence.

        embedded: the target's embeddings `[B, N, block, width]` of [anchor, MASK, ...]. A block
        at position anchors `[B, N]` sees the context before its anchor, inside the window, and
        all of itself.
        """
        batch, count, block, _ = embedded.shape
        positions = (anchors[..., None] + torch.arange(block)).view(batch, count * block)
        context_positions = torch.arange(context[0][0].shape[2])
        seen = context_positions < anchors.repeat_interleave(block, dim=1)[..., None]
        near = positions[..., None] - context_positions < self.config.window
        own = torch.arange(count).repeat_interleave(block)
        same = (own[:, None] == own).expand(batch, -1, -1)
        visible = torch.cat([seen & near, same], dim=-1)[:, None]
        x = embedded
        for layer, injected in zip(self.layers, context, strict=True):
            x = layer(x, positions, injected, visible)
        return self.norm(x)

    @torch.no_grad()
    def propose(self, hidden: Tensor, logits: Tensor, anchor: Tensor) -> Tensor:
        """The greedy walk: tokens `[B, R]` from hidden `[B, R, width]`, logits `[B, R, vocab]`."""
        unary, candidates = logits.topk(self.config.top_k, dim=-1)
        path, previous = [], anchor
        for row in range(hidden.shape[1]):
            scores = self.candidate_selector(hidden[:, row], previous, candidates[:, row])
            best = (unary[:, row] + scores).argmax(-1, keepdim=True)
            previous = candidates[:, row].gather(-1, best)[:, 0]
            path.append(previous)
        return torch.stack(path, dim=1)
