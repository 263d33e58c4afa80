"""Who may enter: the first-come queue, and the rule for the room that a request needs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from luce_core.errors import RequestError
from luce_core.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRule:
    """Room in tokens. The same rule refuses on arrival and reserves at admission.

    `headroom` is one block + 1 + max_draft: what a fresh decoder may need before the next
    admission looks at the pool again.
    """

    max_context: int
    pool_tokens: int
    headroom: int
    reserve_full: bool = False

    def check(self, prompt_tokens: int) -> None:
        """RequestError (400) for a prompt that no amount of waiting could serve."""
        if prompt_tokens >= self.max_context:
            raise RequestError(
                f"This model's maximum context length is {self.max_context} tokens, but the prompt "
                f"has {prompt_tokens} tokens, which leaves no room for an answer.",
                param="messages",
                code="context_length_exceeded",
            )
        if prompt_tokens > self.pool_tokens:
            raise RequestError(
                f"The prompt has {prompt_tokens} tokens, but the KV cache holds {self.pool_tokens} "
                "tokens in all.",
                param="messages",
                code="kv_capacity_exceeded",
            )

    def cap_max_tokens(self, prompt_tokens: int, wanted: int | None) -> int:
        """Tokens that may be generated: the rest of the context, or less if asked for."""
        room = self.max_context - prompt_tokens
        return room if wanted is None else min(wanted, room)

    def reservation(self, request: Request) -> int:
        """Tokens to reserve at admission; never more than the whole pool, so that it can come."""
        wanted = request.total_tokens + self.headroom
        if self.reserve_full:
            wanted = len(request.prompt) + request.max_tokens
        return min(wanted, self.max_context, self.pool_tokens)


class AdmissionQueue:
    """Strict first come, first served. Every operation costs the same at any length."""

    def __init__(self) -> None:
        # An OrderedDict is a linked list with an index: its front is found at once even after
        # many removals, where a plain dict would scan over the holes.
        self._waiting: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def head(self) -> Request | None:
        return next(iter(self._waiting.values()), None)

    def push(self, request: Request) -> None:
        self._waiting[request.id] = request

    def push_front(self, request: Request) -> None:
        self._waiting[request.id] = request
        self._waiting.move_to_end(request.id, last=False)

    def remove(self, request: Request) -> None:
        del self._waiting[request.id]
