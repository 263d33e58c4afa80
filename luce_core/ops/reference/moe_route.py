"""Which experts a row goes to, and how much each counts.

Two ways to score, by the fact `scoring`:
* `softmax`: an expert's score is its logit; the weights are the softmax over the chosen logits,
  which is the softmax over all experts, renormalised (Mixtral, arXiv 2401.04088; Qwen).
* `sqrt_softplus`: s = sqrt(log(1 + exp(logit))) (DeepSeek V4). The experts are chosen by s + bias,
  the weights are s / (the sum of the chosen s + 1e-20), without the bias.
The weights are multiplied by `scale`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from luce_core.errors import ConfigError
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows

SCORINGS = ("softmax", "sqrt_softplus")
_LEAST_SUM = 1e-20


def moe_route(
    logits: Tensor,  # [R, E]
    bias: Tensor | None,  # [E] float32, with `sqrt_softplus` only
    out: Tensor,  # [R, 2, top_k] float32: expert numbers, then their weights
    *,
    experts: int,
    top_k: int,
    scoring: str,
    scale: float,
) -> None:
    scores = expert_scores(logits, scoring)
    ranked = scores if bias is None else scores + bias
    chosen = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    out[:, 0] = chosen
    out[:, 1] = expert_weights(scores.gather(-1, chosen), scoring) * scale


def expert_scores(logits: Tensor, scoring: str) -> Tensor:
    """What experts are compared by, before a bias.

    By way of float64: torch's float32 softplus gives other bits to the last elements of a tensor.
    """
    if scoring == "softmax":
        return logits.float()
    return torch.nn.functional.softplus(logits.double()).sqrt().float()


def expert_weights(chosen: Tensor, scoring: str) -> Tensor:
    """The weights of the chosen experts [R, top_k] from their scores, before the scale.

    The sum goes in the route's order, so that its bits are a row's own.
    """
    if scoring == "softmax":
        return chosen.softmax(-1)
    total = chosen[:, :1]
    for place in range(1, chosen.shape[1]):
        total = total + chosen[:, place : place + 1]
    return chosen / (total + _LEAST_SUM)


def route_constants(facts: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """The facts; ConfigError for a scoring that there is not."""
    if facts["scoring"] not in SCORINGS:
        raise ConfigError(
            f"moe_route: unknown scoring {facts['scoring']!r}, choose from {', '.join(SCORINGS)}"
        )
    return facts


def out_shape(logits: Tensor, *, top_k: int, **facts: Any) -> tuple[int, ...]:
    return (logits.shape[0], 2, top_k)


def cases() -> Iterator[OpCase]:
    for rows, experts, top_k in ((1, 8, 2), (5, 256, 8), (37, 10, 3), (3, 4, 4)):
        facts = {"experts": experts, "top_k": top_k}

        def make(maker: CaseMaker, shape: tuple[int, int] = (rows, experts)) -> Inputs:
            return row_inputs(maker.normal(*shape, std=2.0), weights=(None,))

        def make_biased(maker: CaseMaker, shape: tuple[int, int] = (rows, experts)) -> Inputs:
            # In steps of 1/8, so that scores that differ differ by more than their rounding.
            logits = (maker.normal(*shape, std=2.0) * 8).round() / 8
            return row_inputs(logits, weights=((maker.normal32(shape[1]) * 8).round() / 8,))

        yield OpCase(f"{rows} rows, {top_k} of {experts}", facts, make)
        scored = {**facts, "scoring": "sqrt_softplus", "scale": 1.5}
        yield OpCase(f"{rows} rows, {top_k} of {experts}, softplus", scored, make)
        if experts < 64:
            name = f"{rows} rows, {top_k} of {experts}, softplus and bias"
            yield OpCase(name, scored, make_biased)

    def make_ties(maker: CaseMaker) -> Inputs:
        """Rounded, so that many experts tie, at the border too."""
        return row_inputs(maker.normal(16, 32).round(), weights=(None,))

    yield OpCase("ties", {"experts": 32, "top_k": 6}, make_ties)
    softplus = {"scoring": "sqrt_softplus", "scale": 1.5}
    yield OpCase("ties, softplus", {"experts": 32, "top_k": 6, **softplus}, make_ties)

    def make_far(maker: CaseMaker) -> Inputs:
        """Logits of such size that a softplus without care overflows or vanishes."""
        rows = torch.tensor([[-80.0, -60.0, -90.0, -70.0], [90.0, 120.0, 60.0, 100.0]])
        return row_inputs(rows.to(maker.device, maker.dtype), weights=(None,))

    yield OpCase("far logits", {"experts": 4, "top_k": 2, **softplus}, make_far)


SPEC = OpSpec(
    name="moe_route",
    doc=(
        "The `top_k` experts with the largest scores, largest first, ties to the lowest number: "
        "their numbers (exact in float32), then their weights times `scale`. With scoring softmax "
        "the scores are the logits and the weights the softmax over the chosen ones, which is the "
        "softmax over all experts, renormalised. With sqrt_softplus s = sqrt(softplus(logit)), the "
        "choice is by s + bias and the weights are s / sum of the chosen s. Softmax takes no bias."
    ),
    args=(
        ArgSpec("logits", ArgKind.ACTIVATION, ("R", "experts"), Rows.ANY),
        ArgSpec("bias", ArgKind.WEIGHT, ("experts",), optional=True),
    ),
    out=OutSpec(Rows.ANY, out_shape, dtype=torch.float32),
    facts=("experts", "top_k"),
    optional_facts={"scoring": "softmax", "scale": 1.0},
    constants=route_constants,
    reference=moe_route,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
