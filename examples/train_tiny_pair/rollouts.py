"""Stage 2: prompts from the corpus, continued greedily by the target in bulk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import data
from .target import Target

BATCH = 128
LENGTH = 320
# Prompts of several lengths, one per batch in turn: the draft meets short and long contexts.
PROMPTS = (32, 96, 160)


@torch.no_grad()
def greedy(model: Target, prompts: Tensor, tokens: int) -> Tensor:
    """`[B, P + tokens]`: prompts `[B, P]` and what follows; END does not stop a row."""
    hidden, _, state = model.hidden(prompts)
    rows = [prompts]
    for _ in range(tokens):
        chosen = model.lm_head(hidden[:, -1:]).argmax(-1)
        rows.append(chosen)
        hidden, _, state = model.hidden(chosen, state)
    return torch.cat(rows, dim=1)


def make_rollouts(model: Target, out: Path, batches: int, batch: int = BATCH) -> None:
    """Write `out/rollouts/N.npy`, `[batch, LENGTH]` each; those that exist are kept."""
    folder = out / "rollouts"
    folder.mkdir(exist_ok=True)
    ids = data.load_ids(out, "train")
    for index in range(batches):
        path = folder / f"{index}.npy"
        if path.exists():
            continue
        prompt = PROMPTS[index % len(PROMPTS)]
        prompts = data.random_windows(ids, batch, prompt, seed=7_000_000 + index)
        rows = greedy(model, prompts, LENGTH - prompt)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.save(file, rows.numpy().astype(np.uint16))
        os.replace(part, path)
        print(f"rollouts {index + 1}/{batches}", flush=True)


def load_rollouts(out: Path, batches: int) -> tuple[Tensor, Tensor]:
    """All rollouts `[N, LENGTH]` and the length of each one's prompt `[N]`, int64."""
    parts = [np.load(out / "rollouts" / f"{index}.npy") for index in range(batches)]
    prompts = [[PROMPTS[index % len(PROMPTS)]] * len(part) for index, part in enumerate(parts)]
    rows = torch.from_numpy(np.concatenate(parts).astype(np.int64))
    return rows, torch.tensor(prompts).flatten()
