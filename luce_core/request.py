"""A request as the scheduler sees it: token ids in, token ids out, no text."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luce_core.kv.slot_table import Slot


class FinishReason(StrEnum):
    """Why a request ended. `stop`: stop id or stop string; `length`: max_tokens, context, pool."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Phase(StrEnum):
    """What a slot does in a step."""

    PREFILL = "prefill"
    DECODE = "decode"


class State(StrEnum):
    """Where a request is in its life (design: life of a request)."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen; validated by the server, so engines may trust the ranges.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. `logit_bias` pairs a
    token id with a bias; -100 and lower is a ban. `logprobs` None gives none, N gives the sampled
    token's and the N best. Stop ids are banned until `min_tokens` tokens have been generated.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False


GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class RequestTimes:
    """Monotonic seconds; None until it happened. A preempted request keeps its first values."""

    submitted: float
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One choice of one client call. The scheduler owns it; engines and sampler only read it.

    `ended_in` is the state that `finish` was reached from. `error` is for clients: a code, a colon,
    and a sentence that tells nothing of the inside.
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int]
    times: RequestTimes
    choice_index: int = 0
    slot: Slot | None = None
    generated: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    ended_in: State | None = None
    error: str | None = None
    proposed: int = 0
    accepted: int = 0
    preemptions: int = 0

    @property
    def state(self) -> State:
        if self.finish is not None:
            return State.FINISHED
        return State.QUEUED if self.slot is None else State(self.slot.phase)

    @property
    def total_tokens(self) -> int:
        """Tokens known so far: what prefill must put into the cache before decoding goes on."""
        return len(self.prompt) + len(self.generated)

    @property
    def prefilled(self) -> int:
        """Tokens of this request that are durable in the cache."""
        return 0 if self.slot is None else self.slot.length

    def tokens_between(self, start: int, stop: int) -> tuple[int, ...]:
        """Token ids at positions start..stop-1 of prompt + generated."""
        prompt_len = len(self.prompt)
        if stop <= prompt_len:
            return self.prompt[start:stop]
        if start >= prompt_len:
            return tuple(self.generated[start - prompt_len : stop - prompt_len])
        return self.prompt[start:] + tuple(self.generated[: stop - prompt_len])
