"""What a slot's request demands of its tokens besides chance: bias, bans, min_tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from luce_core.errors import LuceError
from luce_core.request import Request

BAN_BIAS = -100.0
FORCE_BIAS = 100.0


class SlotRules:
    """One admitted request as the sampler sees it; `generated` counts its tokens so far.

    A bias of -100 or less bans a token. A bias of 100 or more forces: the choice is among the
    tokens forced this way, by their scores plus bias, whatever the others score.
    """

    def __init__(self, request: Request, vocab_size: int, device: str) -> None:
        self.params = request.params
        self.choice_index = request.choice_index
        self.max_tokens = request.max_tokens
        self.generated = len(request.generated)
        self._vocab_size = vocab_size
        bias = dict(self.params.logit_bias)
        for token in bias:
            if not 0 <= token < vocab_size:
                raise LuceError(f"logit_bias: token id {token} is outside 0..{vocab_size - 1}")
        self._banned = frozenset(t for t, value in bias.items() if value <= BAN_BIAS)
        self._forced = frozenset(t for t, value in bias.items() if value >= FORCE_BIAS)
        self._stops = frozenset(t for t in request.stop_ids if 0 <= t < vocab_size)
        self._bias_ids = torch.tensor(list(bias), dtype=torch.int64, device=device)
        self._bias_values = torch.tensor(
            [float("-inf") if t in self._banned else value for t, value in bias.items()],
            dtype=torch.float32,
            device=device,
        )
        self._forced_ids = torch.tensor(sorted(self._forced), dtype=torch.int64, device=device)
        self._stop_ids = torch.tensor(sorted(self._stops), dtype=torch.int64, device=device)
        self.has_penalties = (
            self.params.repetition_penalty != 1.0
            or self.params.presence_penalty != 0.0
            or self.params.frequency_penalty != 0.0
        )
        is_greedy = self.params.temperature == 0.0 and not bias and not self.has_penalties
        # With so many tokens generated, the next ones are the best of the model's logits as they
        # are; None: never. Asked twice a step, so it is one comparison.
        self._best_from = (self.params.min_tokens if self._stops else 0) if is_greedy else None

    @property
    def takes_best(self) -> bool:
        """Whether the next tokens are the best of the model's logits as they are."""
        return self._best_from is not None and self.generated >= self._best_from

    @property
    def reads_logits(self) -> bool:
        """Whether more is wanted of the next rows than their best tokens."""
        return not self.takes_best or self.params.logprobs is not None

    @property
    def edits_logits(self) -> bool:
        """Whether the next row differs from the model's logits before temperature."""
        return bool(self.params.logit_bias) or self._stop_ban_rows > 0 or self.has_penalties

    @property
    def _stop_ban_rows(self) -> int:
        """How many of the next tokens may not be a stop id."""
        return max(0, self.params.min_tokens - self.generated) if self._stops else 0

    def apply(self, rows: Tensor) -> None:
        """Bias and bans, in place, on [n, V] float32: the rows of this slot's next n tokens."""
        if self._forced:
            chosen = rows[:, self._forced_ids]
            rows.fill_(float("-inf"))
            rows[:, self._forced_ids] = chosen
        if self.params.logit_bias:
            rows[:, self._bias_ids] += self._bias_values
        stop_rows = self._stop_ban_rows
        if stop_rows:
            rows[:stop_rows, self._stop_ids] = float("-inf")

    def clip(self, drafts: list[int]) -> list[int]:
        """The drafts that a verify segment can accept: none banned, none past max_tokens."""
        most = max(0, self.max_tokens - self.generated - 1)
        for index, token in enumerate(drafts[:most]):
            if not self._allows(token, index):
                return drafts[:index]
        return drafts[:most]

    def _allows(self, token: int, ahead: int) -> bool:
        if not 0 <= token < self._vocab_size or token in self._banned:
            return False
        if self._forced and token not in self._forced:
            return False
        return token not in self._stops or ahead >= self._stop_ban_rows
