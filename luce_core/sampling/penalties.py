"""Repetition, presence and frequency penalties, and the token counts they rest on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from luce_core.request import Request, SamplingParams


class PenaltyCounts:
    """Per slot: how often each token was generated, and whether the prompt holds it.

    The [slots, V] tensors are made when the first request with penalties arrives.
    """

    def __init__(self, max_slots: int, vocab_size: int, device: str) -> None:
        self._shape = (max_slots, vocab_size)
        self._device = device
        self._generated: Tensor | None = None  # int32
        self._in_prompt: Tensor | None = None  # bool

    def admit(self, slot_id: int, request: Request) -> None:
        """Start from the request's prompt and from what it has generated before a preemption."""
        if self._generated is None or self._in_prompt is None:
            self._generated = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
            self._in_prompt = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        self._generated[slot_id] = 0
        self._in_prompt[slot_id] = False
        self._in_prompt[slot_id, self._ids(request.prompt)] = True
        self.add(slot_id, request.generated)

    def add(self, slot_id: int, tokens: Sequence[int]) -> None:
        """Count generated tokens of an admitted slot."""
        assert self._generated is not None
        ids = self._ids(tokens)
        self._generated[slot_id].index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))

    def apply(
        self, slot_id: int, rows: Tensor, drafts: Sequence[int], params: SamplingParams
    ) -> None:
        """In place on [1 + len(drafts), V] float32; row j sees drafts[:j] as generated.

        Repetition divides positive and multiplies negative logits of tokens in prompt or output;
        then frequency x count and presence are taken off tokens in the output.
        """
        assert self._generated is not None
        assert self._in_prompt is not None
        counts = self._generated[slot_id]
        draft_ids = torch.tensor(drafts, dtype=torch.int64, device=self._device)
        touched = (counts > 0) | self._in_prompt[slot_id]
        touched[draft_ids] = True
        ids = touched.nonzero()[:, 0]
        generated = counts[ids].expand(rows.shape[0], -1).clone()
        generated[1:] += (draft_ids[:, None] == ids).int().cumsum(0)
        seen = (generated > 0) | self._in_prompt[slot_id, ids]

        scores = rows[:, ids]
        factor = params.repetition_penalty
        repeated = torch.where(scores > 0, scores / factor, scores * factor)
        scores = torch.where(seen, repeated, scores)
        scores -= generated * params.frequency_penalty
        scores -= (generated > 0) * params.presence_penalty
        rows[:, ids] = scores

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        known = [token for token in tokens if 0 <= token < self._shape[1]]
        return torch.tensor(known, dtype=torch.int64, device=self._device)
