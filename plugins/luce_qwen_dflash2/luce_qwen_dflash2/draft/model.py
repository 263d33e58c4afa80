"""The draft's two passes over ops that are bound once at load: take in features, propose blocks."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.registry import OpBinder
from luce_core.weights.gguf_file import GgufFile
from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.draft.layers import Layer
from luce_qwen_dflash2.draft.rings import Ring
from luce_qwen_dflash2.draft.tensors import DraftTensors

Progress = Callable[[int, int, str], None]


class DraftModel:
    """All layers. `embed` [T] -> [T, width] and `head` [L, width] -> [L, vocab] are the target's:
    a draft has neither."""

    def __init__(
        self,
        gguf: GgufFile,
        config: DraftConfig,
        ops: OpBinder,
        *,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        vocab_size: int,
        progress: Progress,
    ) -> None:
        tensors, width = DraftTensors(gguf), config.width
        self.features = len(config.target_layers) * width
        self._embed, self._head = embed, head
        self._take = ops.bind("take_rows")
        self._fc = ops.linear(tensors.take("fc.weight", width, self.features))
        context_norm = tensors.take("enc.output_norm.weight", width)
        self._context_norm = ops.bind("rms_norm", weights=(context_norm,), eps=config.eps)
        self._layers: list[Layer] = []
        for index in range(config.layers):
            self._layers.append(Layer(ops, tensors, config, index=index))
            done = f"draft layer {index + 1} of {config.layers}"
            progress(tensors.claimed_bytes, gguf.total_bytes, done)
        norm = tensors.take("output_norm.weight", width)
        self._norm = ops.bind("rms_norm", weights=(norm,), eps=config.eps)
        self._gather = ops.bind("gather_rows")
        self._project = self._select = None
        self._draw = ops.bind("draft_draw")
        if config.selector is not None:
            rank = config.selector.rank
            self._project = ops.linear(tensors.take("selector_hidden.weight", rank, width))
            books = tuple(
                tensors.take(f"selector_{name}.weight", vocab_size, rank)
                for name in ("predecessor", "successor")
            )
            self._select = ops.bind(
                "candidate_select",
                weights=books,
                top_k=config.selector.top_k,
                rank=rank,
                predecessor_type=books[0].qtype.name,
                successor_type=books[1].qtype.name,
            )
        tensors.finish()

    def inject(
        self, batch: PackedBatch, places: Tensor, features: Tensor, rings: tuple[Ring, ...]
    ) -> tuple[()]:
        """Write the rings at the rows of `Ring.rows`, from the rows of `features` [R, F] that
        `places` [max_rows] int32 names."""
        context = self._context_norm(self._fc(self._take(batch, places, features)))
        for layer, ring in zip(self._layers, rings, strict=True):
            layer.inject(context, batch, ring)
        return ()

    def hidden(self, batch: PackedBatch, rings: tuple[Ring, ...]) -> Tensor:
        """Normed hidden states of the batch's logit rows [L, width]; reads the rings."""
        x = self._embed(batch.token_ids)
        for layer, ring in zip(self._layers, rings, strict=True):
            x = layer(x, batch, ring)
        out: Tensor = self._norm(self._gather(x, batch.logit_rows))
        return out

    def propose(
        self, batch: PackedBatch, rings: tuple[Ring, ...], temperatures: Tensor, noise_keys: Tensor
    ) -> Tensor:
        """Draft tokens [L] int32 of the batch's blocks."""
        h = self.hidden(batch, rings)
        logits = self._head(h)
        tokens: Tensor
        if self._select is None or self._project is None:
            tokens = self._draw(logits, batch, temperatures, noise_keys)
        else:
            g = self._project(h)
            tokens = self._select(logits, g, batch, temperatures, noise_keys)
        return tokens
