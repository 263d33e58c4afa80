"""Muon for the hidden matrices and AdamW for the rest, on one cosine schedule."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Coefficients of Newton-Schulz's quintic iteration: Keller Jordan, Muon, 2024.
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix-shaped update is orthogonalised; equal shapes are done together."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for param in group["params"]:
                shapes[tuple(param.shape)].append(param)
            for (rows, columns), params in shapes.items():
                updates = torch.stack([self._momentum(p, group["momentum"]) for p in params])
                scale = group["lr"] * math.sqrt(max(1.0, rows / columns))
                for param, update in zip(params, _orthogonal(updates), strict=True):
                    param.add_(update, alpha=-scale)

    def _momentum(self, param: nn.Parameter, momentum: float) -> Tensor:
        assert param.grad is not None
        state = self.state[param]
        if not state:
            state["mean"] = torch.zeros_like(param)
        mean: Tensor = state["mean"]
        mean.lerp_(param.grad, 1 - momentum)
        return param.grad.lerp(mean, momentum)


def _orthogonal(matrices: Tensor) -> Tensor:
    """`[N, R, C]` with each matrix's singular values brought near 1."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        square = x @ x.transpose(1, 2)
        x = _A * x + (_B * square + _C * square @ square) @ x
    x = x.float()
    return x.transpose(1, 2) if tall else x


class Optimizer:
    """Both optimisers of a model. `step(at, of)` sets the rates and applies the gradients."""

    def __init__(self, model: nn.Module, tables: frozenset[str], lr: float, table_lr: float):
        """`tables` names the matrices that AdamW gets: embeddings, codebooks, the output head."""
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        hidden = [p for name, p in named if p.ndim == 2 and name not in tables and min(p.shape) > 8]
        chosen = {id(p) for p in hidden}
        rest = [p for _, p in named if id(p) not in chosen]
        adam = torch.optim.AdamW(rest, lr=table_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._parts = (Muon(hidden, lr), adam)
        self._rates = (lr, table_lr)
        self._params = [p for _, p in named]

    def step(self, at: int, of: int) -> None:
        scale = _schedule(at, of)
        nn.utils.clip_grad_norm_(self._params, 1.0)
        for part, rate in zip(self._parts, self._rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * scale
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, object]]:
        return [part.state_dict() for part in self._parts]

    def restore(self, state: list[dict[str, object]]) -> None:
        for part, saved in zip(self._parts, state, strict=True):
            part.load_state_dict(saved)


def _schedule(at: int, of: int) -> float:
    """Linear warm-up over 3 % of the steps, then a cosine to 2 %."""
    warm = max(1, of * 3 // 100)
    if at < warm:
        return (at + 1) / warm
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (at - warm) / max(1, of - warm)))
