"""The target: a small hybrid decoder of the Qwen3.5 architecture.

Parameter names are those of transformers' Qwen3_5ForCausalLM, so that its weights can be loaded
there. RMSNorm weights are zero-centred (1 + w) except the DeltaNet's output norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data import VOCAB
from .delta import causal_conv, delta_rule
from .rope import rotate


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Sizes; value heads are twice the key heads, every fourth layer is full attention."""

    vocab: int = VOCAB
    width: int = 256
    ff: int = 512
    layers: int = 8
    full_every: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    rope_sections: tuple[int, int, int] = (3, 3, 2)
    rope_base: float = 10_000.0
    key_heads: int = 2
    value_heads: int = 4
    delta_dim: int = 64
    conv: int = 4
    context: int = 1024
    eps: float = 1e-6

    def is_full(self, layer: int) -> bool:
        return (layer + 1) % self.full_every == 0


@dataclass(frozen=True, slots=True)
class TargetState:
    """What a sequence needs to go on: per layer (conv inputs, S) or (keys, values)."""

    tokens: int
    layers: tuple[tuple[Tensor, Tensor], ...]


class Norm(nn.Module):
    """RMSNorm over the last axis with a zero-centred weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), 1 + self.weight, self.eps)


class PlainNorm(nn.Module):
    """RMSNorm over the last axis with a plain weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, ff: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, ff, bias=False)
        self.up_proj = nn.Linear(width, ff, bias=False)
        self.down_proj = nn.Linear(ff, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class GatedAttention(nn.Module):
    """Causal grouped-query attention whose output a sigmoid gate scales."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        heads = config.heads * config.head_dim
        kv = config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.width, 2 * heads, bias=False)
        self.k_proj = nn.Linear(config.width, kv, bias=False)
        self.v_proj = nn.Linear(config.width, kv, bias=False)
        self.o_proj = nn.Linear(heads, config.width, bias=False)
        self.q_norm = Norm(config.head_dim, config.eps)
        self.k_norm = Norm(config.head_dim, config.eps)

    def empty(self, rows: int) -> tuple[Tensor, Tensor]:
        none = torch.zeros(rows, self.config.kv_heads, 0, self.config.head_dim)
        return none, none

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        config = self.config
        batch, tokens, _ = x.shape
        before = past[0].shape[2]
        q, gate = self.q_proj(x).view(batch, tokens, config.heads, -1).chunk(2, dim=-1)
        k = self.k_proj(x).view(batch, tokens, config.kv_heads, -1)
        v = self.v_proj(x).view(batch, tokens, config.kv_heads, -1)
        positions = torch.arange(before, before + tokens)
        q = rotate(self.q_norm(q), positions, config.rotary_dim, config.rope_base)
        k = rotate(self.k_norm(k), positions, config.rotary_dim, config.rope_base)
        keys = torch.cat([past[0], k.transpose(1, 2)], dim=2)
        values = torch.cat([past[1], v.transpose(1, 2).float()], dim=2)
        visible = torch.ones(tokens, before + tokens, dtype=torch.bool).tril(before)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, attn_mask=visible, enable_gqa=True
        ).transpose(1, 2)
        out = (out * torch.sigmoid(gate)).reshape(batch, tokens, -1)
        return self.o_proj(out), (keys, values)


class DeltaNet(nn.Module):
    """Gated DeltaNet."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.key_width = config.key_heads * config.delta_dim
        self.value_width = config.value_heads * config.delta_dim
        channels = 2 * self.key_width + self.value_width
        self.in_proj_qkv = nn.Linear(config.width, channels, bias=False)
        self.in_proj_z = nn.Linear(config.width, self.value_width, bias=False)
        self.in_proj_b = nn.Linear(config.width, config.value_heads, bias=False)
        self.in_proj_a = nn.Linear(config.width, config.value_heads, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, config.conv, groups=channels, bias=False)
        self.A_log = nn.Parameter(torch.linspace(1.0, 8.0, config.value_heads).log())
        # softplus^-1 of time steps 0.01 .. 0.1, as in Mamba 2
        steps = torch.logspace(-2, -1, config.value_heads)
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.norm = PlainNorm(config.delta_dim, config.eps)
        self.out_proj = nn.Linear(self.value_width, config.width, bias=False)

    def empty(self, rows: int) -> tuple[Tensor, Tensor]:
        config = self.config
        channels = 2 * self.key_width + self.value_width
        state = torch.zeros(rows, config.value_heads, config.delta_dim, config.delta_dim)
        return torch.zeros(rows, config.conv - 1, channels), state

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        config = self.config
        batch, tokens, _ = x.shape
        qkv = self.in_proj_qkv(x).float()
        z = self.in_proj_z(x).view(batch, tokens, config.value_heads, -1)
        beta = torch.sigmoid(self.in_proj_b(x).float())
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        qkv, before = causal_conv(qkv, self.conv1d.weight[:, 0], past[0])
        q, k, v = F.silu(qkv).split([self.key_width, self.key_width, self.value_width], dim=-1)
        repeat = config.value_heads // config.key_heads
        q = _unit(q.reshape(batch, tokens, config.key_heads, -1)) * config.delta_dim**-0.5
        k = _unit(k.reshape(batch, tokens, config.key_heads, -1))
        q, k = (part.repeat_interleave(repeat, dim=2) for part in (q, k))
        v = v.reshape(batch, tokens, config.value_heads, -1)
        with torch.autocast("cpu", enabled=False):
            out, state = delta_rule(q, k, v, g, beta, past[1])
        out = self.norm(out) * F.silu(z.float())
        return self.out_proj(out.reshape(batch, tokens, -1)), (before, state)


class Layer(nn.Module):
    """Token mixer and MLP, each on a normalised input and added to the residual stream."""

    def __init__(self, config: TargetConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.width, config.eps)
        self.post_attention_layernorm = Norm(config.width, config.eps)
        if config.is_full(index):
            self.self_attn = GatedAttention(config)
        else:
            self.linear_attn = DeltaNet(config)
        self.full = config.is_full(index)
        self.mlp = Mlp(config.width, config.ff)

    @property
    def mixer(self) -> GatedAttention | DeltaNet:
        return self.self_attn if self.full else self.linear_attn

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, now = self.mixer(self.input_layernorm(x), past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), now


class Trunk(nn.Module):
    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = Norm(config.width, config.eps)


class Target(nn.Module):
    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.width, config.vocab, bias=False)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.1)
        nn.init.normal_(self.lm_head.weight, std=0.02)
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)

    def empty(self, rows: int) -> TargetState:
        """The state before the first token of `rows` sequences."""
        layers = tuple(layer.mixer.empty(rows) for layer in self.model.layers)
        return TargetState(0, layers)

    def hidden(
        self, ids: Tensor, state: TargetState | None = None, taps: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None, TargetState]:
        """Normalised hidden states `[B, T, width]`, features and the state after `ids` `[B, T]`.

        Features are the residual stream after each layer in `taps`, joined: `[B, T, n * width]`.
        """
        state = self.empty(len(ids)) if state is None else state
        x = self.model.embed_tokens(ids)
        tapped, now = [], []
        for index, layer in enumerate(self.model.layers):
            x, kept = layer(x, state.layers[index])
            now.append(kept)
            if index in taps:
                tapped.append(x)
        features = torch.cat(tapped, dim=-1) if tapped else None
        return self.model.norm(x), features, TargetState(state.tokens + ids.shape[1], tuple(now))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits `[B, T, vocab]` of whole sequences."""
        return self.lm_head(self.hidden(ids)[0])


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
