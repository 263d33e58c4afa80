"""Training that can be stopped at any time and goes on from its last checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from .optimizer import Optimizer

EVERY_SECONDS = 120


def train(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer,
    steps: int,
    loss_of: Callable[[int], dict[str, Tensor]],
) -> None:
    """Run the steps that `path` does not hold yet; `model` has the final weights afterwards.

    `loss_of(step)` computes the losses of one batch: their sum is minimised, each is printed.
    A step count other than that of the checkpoint is refused: the schedule depends on it.
    """
    done = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        if saved["steps"] != steps:
            raise SystemExit(f"{path} is of {saved['steps']} steps, not {steps}: move it away")
        model.load_state_dict(saved["model"])
        optimizer.restore(saved["optimizer"])
        done = saved["done"]
    written = time.monotonic()
    means: dict[str, float] = {}
    for step in range(done, steps):
        losses = loss_of(step)
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step(step, steps)
        for name, loss in losses.items():
            means[name] = 0.95 * means.get(name, loss.item()) + 0.05 * loss.item()
        if step % 10 == 0 or step + 1 == steps:
            shown = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
            print(f"{path.stem} {step + 1}/{steps}  {shown}  cpu {_cpu_minutes()}", flush=True)
        if step + 1 == steps or time.monotonic() - written > EVERY_SECONDS:
            save(
                path,
                {
                    "steps": steps,
                    "done": step + 1,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state(),
                },
            )
            written = time.monotonic()


def save(path: Path, value: object) -> None:
    """Write a checkpoint that is either complete or not there."""
    part = path.with_name(path.name + ".part")
    torch.save(value, part)
    os.replace(part, path)


def _cpu_minutes() -> str:
    return f"{time.process_time() / 60:.1f} min"
