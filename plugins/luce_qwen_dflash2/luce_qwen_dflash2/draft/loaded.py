"""A draft file, read and bound for its target: what it needs, before it gets its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from luce_core.engine import DraftContext
from luce_core.errors import ConfigError
from luce_core.ops.registry import OpBinder
from luce_qwen_dflash2.draft.backlog import Backlog, backlog_rows
from luce_qwen_dflash2.draft.config import DraftConfig, TargetShape, read_config
from luce_qwen_dflash2.draft.draft import INJECT_ROWS, Draft
from luce_qwen_dflash2.draft.model import DraftModel, Progress
from luce_qwen_dflash2.draft.rings import ring_bytes, ring_sizes


class DraftMemory(NamedTuple):
    """Bytes for the engine's MemoryNeed: `per_slot` exists slots + 1 times."""

    per_slot: int
    scratch: int


class LoadedDraft:
    """A draft model whose weights are prepared. `allocate` makes what an engine drafts with."""

    def __init__(
        self,
        model: DraftModel,
        config: DraftConfig,
        ops: OpBinder,
        *,
        block_size: int,
        slots: int,
        max_context: int,
        vocab_size: int,
        ring_dtype: torch.dtype,
    ) -> None:
        self._model = model
        self._config = config
        self._ops = ops
        self._slots = slots
        self._vocab_size = vocab_size
        self._ring_dtype = ring_dtype
        self.max_draft = block_size - 1
        self.max_context = min(max_context, config.context)

    @classmethod
    def load(
        cls,
        context: DraftContext,
        target: TargetShape,
        ops: OpBinder,
        *,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        slots: int,
        max_context: int,
        progress: Progress,
        ring_dtype: torch.dtype | None = None,
    ) -> LoadedDraft:
        """Read the config, bind every op, prepare every weight. `embed` and `head` are the
        target's; rings hold `ring_dtype`, by default the activations' dtype.

        ModelFileError if the file does not fit the target, ConfigError if the settings do not fit
        the file.
        """
        config = read_config(context.gguf, target)
        block_size = context.block_size or config.block_size
        if not 2 <= block_size <= config.block_size:
            raise ConfigError(
                f"--draft-block-size {block_size}: this draft is trained for blocks of "
                f"{config.block_size}; 2 to {config.block_size} are accepted"
            )
        model = DraftModel(
            context.gguf,
            config,
            ops,
            embed=embed,
            head=head,
            vocab_size=target.vocab_size,
            progress=progress,
        )
        return cls(
            model,
            config,
            ops,
            block_size=block_size,
            slots=slots,
            max_context=max_context,
            vocab_size=target.vocab_size,
            ring_dtype=ring_dtype or ops.dtype,
        )

    @property
    def target_layers(self) -> tuple[int, ...]:
        """The target's layers, counted from 0, after which features are taken: in this order."""
        return self._config.target_layers

    def memory(self, *, max_step_rows: int) -> DraftMemory:
        """Rings; the backlog beside steps of so many rows, activations of the widest pass (about
        ten rows of width alive) and logits with a working copy."""
        config, item = self._config, self._ops.dtype.itemsize
        rows = max(INJECT_ROWS, self._slots * (1 + self.max_draft))
        features = INJECT_ROWS + self._backlog_rows(max_step_rows)
        row = 10 * max(config.width, config.heads * config.head_dim)
        logits = 2 * self._slots * self.max_draft * self._vocab_size
        return DraftMemory(
            per_slot=ring_bytes(config, self.max_context, self._ring_dtype),
            scratch=item * (features * self._model.features + rows * row) + 4 * logits,
        )

    def _backlog_rows(self, max_step_rows: int) -> int:
        return backlog_rows(
            self._slots,
            max_rows=max_step_rows,
            longest=max(ring_sizes(self._config, self.max_context)),
            row_bytes=self._ops.dtype.itemsize * self._model.features,
        )

    def allocate(self, *, max_step_rows: int) -> Draft:
        """Make rings and buffers and prepare both passes, beside steps of so many rows. With the
        engine's cache, once."""
        backlog = Backlog(
            self._backlog_rows(max_step_rows),
            self._model.features,
            max_rows=max_step_rows,
            dtype=self._ops.dtype,
            device=self._ops.device,
        )
        return Draft(
            self._model,
            self._config,
            self._ops,
            slots=self._slots,
            max_draft=self.max_draft,
            max_context=self.max_context,
            ring_dtype=self._ring_dtype,
            backlog=backlog,
        )


def read_target_layers(context: DraftContext, target: TargetShape) -> tuple[int, ...]:
    """The layers whose features the file asks for; ModelFileError if it does not fit the target."""
    return read_config(context.gguf, target).target_layers
