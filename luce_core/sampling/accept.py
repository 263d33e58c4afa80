"""What a segment yields: the drafts that equal the tokens chosen at their rows, and one more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from luce_core.plan import TokenLogprob

# In place of a token id where a row has none to offer.
BAD_LOGITS = -1
NO_CANDIDATE = -2

_ERRORS = {
    BAD_LOGITS: "engine_output_invalid: a logits row holds NaN, +Inf or no finite value",
    NO_CANDIDATE: (
        "engine_output_invalid: no token is left to choose after logit_bias, min_tokens, penalties"
    ),
}


class Accepted(NamedTuple):
    """The tokens of one slot in this step; with `error` set there are none."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None


def accept_segment(chosen: Sequence[int], drafts: Sequence[int]) -> Accepted:
    """`chosen` has a token or a fault code for each of the 1 + len(drafts) rows.

    A row counts only if every draft before it was accepted: a fault behind a rejected draft is no
    error, for without speculation the row would not exist.
    """
    count = 1
    for token, draft in zip(chosen, drafts, strict=False):
        if token != draft:
            break
        count += 1
    last = chosen[count - 1]
    if last < 0:
        return Accepted((), None, _ERRORS[last])
    return Accepted(tuple(chosen[:count]))
