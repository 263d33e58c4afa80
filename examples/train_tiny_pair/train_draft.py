"""Stage 3: the draft learns what the frozen target says next."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from . import checkpoint
from .data import MASK_ID
from .draft import Draft, DraftConfig
from .optimizer import Optimizer
from .target import Target

Source = Literal["rollouts", "text"]
ROWS, ANCHORS = 16, 32
# Row j of a block counts exp(-(j-1)/4): a late row matters only if all before it are accepted.
_FADE = 4.0
_TABLES = frozenset(
    {
        "candidate_selector.predecessor_codebook.weight",
        "candidate_selector.successor_codebook.weight",
    }
)


def train_draft(
    out: Path,
    target: Target,
    sequences: Tensor,
    first: Tensor,
    steps: int,
    source: Source,
    rows: int = ROWS,
) -> Draft:
    """The trained draft, from `out/draft-<source>-<steps>.pt` where that is complete.

    Sequence i of `sequences` `[N, T]` is drafted for from position `first[i]` on.
    rollouts: they are the target's own greedy continuations, and a block's labels are the
    tokens that follow its anchor. text: they are corpus windows, and the labels are the target's
    argmax at each position of the true text.
    """
    torch.manual_seed(0)
    draft = Draft(DraftConfig())
    optimizer = Optimizer(draft, _TABLES, lr=0.02, table_lr=0.004)

    def loss_of(step: int) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(step)
        chosen = torch.randint(len(sequences), (rows,), generator=draw)
        spare = sequences.shape[1] - draft.config.block + 1 - first[chosen, None]
        anchors = first[chosen, None] + (torch.rand(rows, ANCHORS, generator=draw) * spare).long()
        with torch.autocast("cpu", torch.bfloat16):
            return _losses(draft, target, sequences[chosen], anchors, source)

    checkpoint.train(out / f"draft-{source}-{steps}.pt", draft, optimizer, steps, loss_of)
    return draft


def _losses(
    draft: Draft, target: Target, ids: Tensor, anchors: Tensor, source: Source
) -> dict[str, Tensor]:
    """Losses over the blocks of `ids` `[B, T]` that begin at positions `anchors` `[B, N]`."""
    block = draft.config.block
    with torch.no_grad():
        hidden, features, _ = target.hidden(ids, taps=draft.config.taps)
        said = ids if source == "rollouts" else _argmax_after(target, ids, hidden)
    assert features is not None
    at = anchors[..., None] + torch.arange(block)
    rows = torch.arange(len(ids))[:, None, None]
    labels = said[rows, at]
    inputs = torch.full_like(labels, MASK_ID)
    inputs[..., 0] = ids[rows, at][..., 0]
    hidden = draft(target.model.embed_tokens(inputs), anchors, draft.inject(features))
    hidden, wanted = hidden[..., 1:, :], labels[..., 1:]
    previous = torch.cat([inputs[..., :1], wanted[..., :-1]], dim=-1)
    logits = target.lm_head(hidden).float()
    weights = torch.exp(-torch.arange(block - 1) / _FADE)
    weights = weights / weights.sum() / anchors.numel()
    unary = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none")
    # The candidates of a draft step, and the wanted token where it is not among them.
    top = logits.detach().topk(draft.config.top_k, dim=-1).indices
    twice = F.pad(top == wanted[..., None], (1, 0))
    candidates = torch.cat([wanted[..., None], top], dim=-1)
    scores = logits.gather(-1, candidates)
    scores = scores + draft.candidate_selector(hidden, previous, candidates)
    scores = scores.masked_fill(twice, -torch.inf)
    pairs = -scores.log_softmax(-1)[..., 0]
    return {
        "unary": (unary.view(wanted.shape) * weights).sum(),
        "selector": (pairs * weights).sum(),
    }


def _argmax_after(target: Target, ids: Tensor, hidden: Tensor) -> Tensor:
    """`[B, T]`: at t the target's choice after the true text up to t-1; at 0 the token itself."""
    chosen = target.lm_head(hidden[:, :-1]).argmax(-1)
    return torch.cat([ids[:, :1], chosen], dim=1)
