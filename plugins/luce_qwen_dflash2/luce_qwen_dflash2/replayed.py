"""Drafts that are right at a chosen rate, so that speculation can be measured without a trained
draft: known continuations, corrupted. Beside a draft model they replace what it proposes, at its
full cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from luce_core.request import Request


class ReplayedDrafts:
    """A DraftSource: proposes what each prompt is known to be followed by, each token replaced by a
    wrong one with probability `corruption`.

    `known` has the tokens by prompt, from runs without drafts. Whether a token is wrong depends on
    `seed`, the prompt and the token's place alone, so that every run proposes the same.
    """

    def __init__(
        self,
        known: Mapping[tuple[int, ...], Sequence[int]],
        *,
        corruption: float,
        vocab_size: int,
        seed: int = 0,
    ) -> None:
        self._vocab_size = vocab_size
        self._drafts = {
            prompt: self._corrupted(tokens, corruption, Random(f"{seed} {prompt}"))
            for prompt, tokens in known.items()
        }

    def _corrupted(self, tokens: Sequence[int], corruption: float, chance: Random) -> list[int]:
        return [
            (token + 1) % self._vocab_size if chance.random() < corruption else token
            for token in tokens
        ]

    def __call__(self, request: Request, width: int) -> list[int]:
        """Behind the end of what is known, tokens of no meaning."""
        done = len(request.generated)
        follow = self._drafts[request.prompt][done : done + width]
        return follow + [0] * (width - len(follow))


def corruption_for(tokens_per_round: float, drafts: int) -> float:
    """The corruption with which a round of `drafts` drafts yields so many tokens on average, the
    accepted ones and the one behind them. From 1 to 1 + drafts."""
    if not 1.0 <= tokens_per_round <= 1 + drafts:
        raise ValueError(
            f"{tokens_per_round} tokens a round: with {drafts} drafts, 1 to {1 + drafts}"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        right = (low + high) / 2
        if sum(right**draft for draft in range(drafts + 1)) < tokens_per_round:
            low = right
        else:
            high = right
    return 1.0 - low
