"""Stage 1: the target learns to continue the corpus."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from . import checkpoint, data
from .optimizer import Optimizer
from .target import Target, TargetConfig

ROWS, LENGTH = 16, 512
_TABLES = frozenset({"model.embed_tokens.weight", "lm_head.weight"})


def train_target(out: Path, steps: int, rows: int = ROWS, length: int = LENGTH) -> Target:
    """The trained target, from `out/target.pt` where that is complete."""
    torch.manual_seed(0)
    model = Target(TargetConfig())
    optimizer = Optimizer(model, _TABLES, lr=0.02, table_lr=0.004)
    ids = data.load_ids(out, "train")
    batches = None

    def loss_of(step: int) -> dict[str, Tensor]:
        nonlocal batches
        if batches is None:
            batches = data.windows(ids, rows, length + 1, start=step, seed=1)
        batch = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch[:, :-1])
        return {"loss": F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())}

    checkpoint.train(out / "target.pt", model, optimizer, steps, loss_of)
    return model


@torch.no_grad()
def held_out_loss(model: Target, out: Path, rows: int = 64) -> float:
    """Mean loss in nats per token on the first windows of the held-out files."""
    ids = data.load_ids(out, "held_out")
    starts = range(0, min(rows * LENGTH, len(ids) - LENGTH - 1), LENGTH)
    losses = []
    for start in starts:
        window = ids[start : start + LENGTH + 1]
        losses.append(F.cross_entropy(model(window[None, :-1])[0], window[1:]).item())
    return sum(losses) / len(losses)
