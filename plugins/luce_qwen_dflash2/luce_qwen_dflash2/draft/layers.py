"""One layer of the draft: attention over ring and block, feed-forward, DFlash2's convolutions."""

from __future__ import annotations

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.registry import OpBinder
from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.draft.rings import Ring
from luce_qwen_dflash2.draft.tensors import DraftTensors


class BlockConv:
    """The dynamic convolution around a sublayer. Its kernels for both sides come from the
    sublayer's input before the convolution; a DFlash draft has none of it."""

    def __init__(
        self, ops: OpBinder, tensors: DraftTensors, config: DraftConfig, *, prefix: str
    ) -> None:
        self._kernels = self._before = self._after = None
        if config.conv is None:
            return
        taps, group, width = config.conv.taps, config.conv.group, config.width
        base = tensors.take(f"{prefix}_conv_base", 2, taps, width)
        changes = 2 * taps * width // group
        self._kernels = ops.linear(tensors.take(f"{prefix}_conv_proj.weight", changes, width))
        self._before, self._after = (
            ops.bind("dynamic_conv", weights=(base,), side=side, taps=taps, group=group)
            for side in (0, 1)
        )

    def before(self, x: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
        """The sublayer's input [T, width], and the kernels for `after`."""
        if self._kernels is None or self._before is None:
            return x, None
        kernels: Tensor = self._kernels(x)
        return self._before(x, kernels, batch), kernels

    def after(self, y: Tensor, kernels: Tensor | None, batch: PackedBatch) -> Tensor:
        """The sublayer's output [T, width]."""
        if self._after is None:
            return y
        out: Tensor = self._after(y, kernels, batch)
        return out


class Attention:
    """Attention of a block: its queries see the slot's ring and the block, as the window allows."""

    def __init__(
        self,
        ops: OpBinder,
        tensors: DraftTensors,
        config: DraftConfig,
        *,
        prefix: str,
        window: int,
        causal: bool,
    ) -> None:
        width, heads, kv_heads, dim = config.width, config.heads, config.kv_heads, config.head_dim
        self._heads, self._kv_heads = (heads, dim), (kv_heads, dim)
        self._q = ops.linear(tensors.take(f"{prefix}_q.weight", heads * dim, width))
        self._k = ops.linear(tensors.take(f"{prefix}_k.weight", kv_heads * dim, width))
        self._v = ops.linear(tensors.take(f"{prefix}_v.weight", kv_heads * dim, width))
        self._out = ops.linear(tensors.take(f"{prefix}_output.weight", width, heads * dim))
        self._q_norm, self._k_norm = (
            ops.bind(
                "rms_norm",
                weights=(tensors.take(f"{prefix}_{name}_norm.weight", dim),),
                eps=config.eps,
            )
            for name in ("q", "k")
        )
        self._rope = ops.bind("rope", **config.rope)
        self._write = ops.bind("ring_write", kv_heads=kv_heads, head_dim=dim)
        self._attend = ops.bind(
            "draft_attention",
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            scale=dim**-0.5,
            window=window,
            causal=causal,
        )

    def __call__(self, x: Tensor, batch: PackedBatch, ring: Ring) -> Tensor:
        q = self._rope(self._q_norm(self._q(x).view(-1, *self._heads)), batch.positions)
        k, v = self._keys_and_values(x, batch)
        out: Tensor = self._out(self._attend(q, k, v, batch, ring.k, ring.v).flatten(1))
        return out

    def inject(self, context: Tensor, batch: PackedBatch, ring: Ring) -> None:
        """Keys and values of context rows [T, width] into the ring."""
        k, v = self._keys_and_values(context, batch)
        self._write(k, v, batch, ring.rows, ring.k, ring.v)

    def _keys_and_values(self, x: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        k = self._rope(self._k_norm(self._k(x).view(-1, *self._kv_heads)), batch.positions)
        return k, self._v(x).view(-1, *self._kv_heads)


class FeedForward:
    """Gated SwiGLU: x [T, width] -> [T, width]."""

    def __init__(
        self, ops: OpBinder, tensors: DraftTensors, config: DraftConfig, *, prefix: str
    ) -> None:
        gate = tensors.take(f"{prefix}_gate.weight", -1, config.width)
        inner = gate.shape[0]
        self._gate = ops.linear(gate)
        self._up = ops.linear(tensors.take(f"{prefix}_up.weight", inner, config.width))
        self._down = ops.linear(tensors.take(f"{prefix}_down.weight", config.width, inner))
        self._swiglu = ops.bind("swiglu")

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._down(self._swiglu(self._gate(x), self._up(x)))
        return out


class Layer:
    """One transformer block of the draft: x [T, width] -> [T, width]."""

    def __init__(
        self, ops: OpBinder, tensors: DraftTensors, config: DraftConfig, *, index: int
    ) -> None:
        blk, width, eps = f"blk.{index}", config.width, config.eps
        attention_norm = tensors.take(f"{blk}.attn_norm.weight", width)
        self._attention_norm = ops.bind("rms_norm", weights=(attention_norm,), eps=eps)
        self._attention_conv = BlockConv(ops, tensors, config, prefix=f"{blk}.attn")
        self._attention = Attention(
            ops,
            tensors,
            config,
            prefix=f"{blk}.attn",
            window=config.windows[index],
            causal=config.causal[index],
        )
        feed_norm = tensors.take(f"{blk}.ffn_norm.weight", width)
        self._feed_norm = ops.bind("rms_norm", weights=(feed_norm,), eps=eps)
        self._feed_conv = BlockConv(ops, tensors, config, prefix=f"{blk}.ffn")
        self._feed = FeedForward(ops, tensors, config, prefix=f"{blk}.ffn")
        self._add = ops.bind("add")

    def __call__(self, x: Tensor, batch: PackedBatch, ring: Ring) -> Tensor:
        u, kernels = self._attention_conv.before(self._attention_norm(x), batch)
        y = self._attention_conv.after(self._attention(u, batch, ring), kernels, batch)
        x = self._add(x, y)
        u, kernels = self._feed_conv.before(self._feed_norm(x), batch)
        out: Tensor = self._add(x, self._feed_conv.after(self._feed(u), kernels, batch))
        return out

    def inject(self, context: Tensor, batch: PackedBatch, ring: Ring) -> None:
        """Context rows have keys and values and nothing else in a layer."""
        self._attention.inject(context, batch, ring)
