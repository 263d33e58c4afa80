"""Speculative decoding in plain torch on held-out prompts: tokens per target forward."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from . import data
from .draft import Draft
from .rollouts import greedy
from .target import Target

PROMPT, TOKENS = 96, 96


@dataclass(frozen=True, slots=True)
class Speculated:
    """`tokens` follow the prompt; `forwards` verified blocks gave all of them but the first."""

    tokens: list[int]
    forwards: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`per_forward`: accepted drafts + 1 per target forward, over all prompts.

    `equal` counts the prompts whose text is that of plain greedy decoding.
    """

    prompts: int
    per_forward: float
    equal: int
    sample: str


@torch.no_grad()
def speculate(target: Target, draft: Draft, prompt: Tensor, tokens: int) -> Speculated:
    """Continue prompt `[P]` greedily by at least `tokens` tokens.

    The target has no rollback: after a rejection the accepted rows run again from the state
    before the block.
    """
    config = draft.config
    hidden, features, state = target.hidden(prompt[None], taps=config.taps)
    assert features is not None
    emitted = [int(target.lm_head(hidden[0, -1]).argmax())]
    context = draft.inject(features)
    forwards = 0
    while len(emitted) < tokens:
        start = state.tokens
        inputs = torch.tensor([emitted[-1], *[data.MASK_ID] * (config.block - 1)])
        embedded = target.model.embed_tokens(inputs)[None, None]
        rows = draft(embedded, torch.tensor([[start]]), context)[0, :, 1:]
        drafted = draft.propose(rows, target.lm_head(rows), inputs[:1])
        block = torch.cat([inputs[None, :1], drafted], dim=1)
        hidden, features, after = target.hidden(block, state, config.taps)
        assert features is not None
        choices = target.lm_head(hidden[0]).argmax(-1)
        accepted = int((drafted[0] == choices[:-1]).cumprod(0).sum())
        emitted += choices[: accepted + 1].tolist()
        forwards += 1
        if accepted + 1 < config.block:
            _, _, after = target.hidden(block[:, : accepted + 1], state)
        state = after
        fresh = draft.inject(features[:, : accepted + 1], start)
        context = tuple(
            (torch.cat([k, more_k], dim=2), torch.cat([v, more_v], dim=2))
            for (k, v), (more_k, more_v) in zip(context, fresh, strict=True)
        )
    return Speculated(emitted, forwards)


def evaluate(
    target: Target, draft: Draft, out: Path, prompts: int, tokens: int = TOKENS
) -> Evaluation:
    """Speculate on `prompts` windows at fixed random places of the held-out files."""
    ids = data.load_ids(out, "held_out")
    emitted = forwards = equal = 0
    sample = ""
    for prompt in data.random_windows(ids, prompts, PROMPT, seed=9_000_000):
        got = speculate(target, draft, prompt, tokens)
        plain = greedy(target, prompt[None], tokens)[0, PROMPT:].tolist()
        emitted += len(got.tokens) - 1
        forwards += got.forwards
        equal += got.tokens[:tokens] == plain
        if not sample:
            tokenizer = data.load_tokenizer(out)
            before, after = tokenizer.decode(prompt.tolist()), tokenizer.decode(plain)
            sample = f"{before}[[HERE THE MODEL GOES ON]]{after}"
    return Evaluation(prompts, emitted / forwards, equal, sample)
