"""An engine without a model: deterministic, quick, and quick to notice when it is misused.

What it generates is up to its mind: a script, or a hash of everything that the slot was fed. Every
token goes through the block table into a small cache and is read back from there, so that a
mixed-up slot, position or block changes the output.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from luce_core.engine import (
    EngineCapabilities,
    MemoryNeed,
    PrefillLimits,
    hookimpl,
)
from luce_core.errors import SlotFault
from luce_core.kv.slot_table import Slot
from luce_core.plan import DecodeRow, PrefillSlice, SlotOutput, StepPlan, StepResult
from luce_core.request import Request
from luce_core.testing.byte_vocab import EOS, VOCAB_SIZE

_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15


def mix(state: int, token: int) -> int:
    """One step of a 64-bit hash chain (the finaliser of splitmix64, Steele et al. 2014)."""
    value = (state + (token + 1) * _SEED) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Context(NamedTuple):
    """What a mind may look at to choose the token after `position`."""

    request: Request
    position: int
    chain: int  # hash of positions 0..position, read back through the block table

    state: int  # the same hash, kept per slot as a recurrent state would be


class Mind(Protocol):
    """Chooses the next token from what the slot has been fed."""

    def next_token(self, context: Context) -> int: ...


class HashMind:
    """Letters that depend on every token fed; with `eos_every` N about 1 in N is an EOS."""

    def __init__(self, eos_every: int = 0) -> None:
        self._eos_every = eos_every

    def next_token(self, context: Context) -> int:
        value = mix(context.chain ^ mix(context.state, 1), context.position)
        if self._eos_every and (value >> 32) % self._eos_every == 0:
            return EOS
        return ord("a") + value % 26


class ScriptMind:
    """The tokens that `script(request)` lists, then EOS for ever."""

    def __init__(self, script: Callable[[Request], Sequence[int]]) -> None:
        self._script = script

    @classmethod
    def text(cls, text: str | bytes, *, end: Sequence[int] = (EOS,)) -> ScriptMind:
        """The same bytes for every request, one token each."""
        tokens = (*(text.encode() if isinstance(text, str) else text), *end)
        return cls(lambda request: tokens)

    def next_token(self, context: Context) -> int:
        tokens = self._script(context.request)
        index = context.position + 1 - len(context.request.prompt)
        return tokens[index] if index < len(tokens) else EOS


@dataclass(slots=True)
class _Fault:
    place: str
    times: int
    after: int
    error: Exception


class _Held:
    """What the engine keeps for a slot."""

    __slots__ = ("committed", "request", "slot", "state")

    def __init__(self, slot: Slot, request: Request) -> None:
        self.slot = slot
        self.request = request
        self.state = _SEED
        self.committed = False


class _Segment(NamedTuple):
    held: _Held
    blocks: tuple[int, ...]
    start: int
    tokens: tuple[int, ...]
    drafts: int
    yields: bool


class FakeEngine:
    """Implements SeqEngine without torch.

    `accept` is the pattern of accepted drafts, used in turn by decode rows. `plans` logs every
    plan. `hold` blocks the engine in its next step until `release`; `fail_at` injects faults at
    "admit", "lower", "row", "step", "commit" or "retire".
    """

    def __init__(
        self,
        mind: Mind | None = None,
        *,
        slots: int = 4,
        block_size: int = 16,
        max_context: int = 1024,
        max_draft: int = 0,
        accept: Sequence[int] = (0,),
        chunk: int = 512,
        step_ms: float = 0.0,
        vocab_size: int = VOCAB_SIZE,
    ) -> None:
        limits = PrefillLimits(
            max_prompts=slots, rows_per_slot=chunk, rows_total=4 * chunk, quantum=chunk
        )
        self.mind: Mind = mind or HashMind()
        self.step_ms = step_ms
        self.plans: list[StepPlan] = []
        self.closed = False
        self._accept = tuple(accept)
        self._turns = 0
        self._held: dict[int, _Held] = {}
        self._cache: list[list[int]] = []
        self._faults: list[_Fault] = []
        self._open = threading.Event()
        self._open.set()
        self._blocked = threading.Event()
        self._capabilities = EngineCapabilities(
            max_slots=slots,
            max_context=max_context,
            block_size=block_size,
            vocab_size=vocab_size,
            max_step_rows=4 * chunk + slots * (1 + max_draft),
            max_draft=max_draft,
            with_decode=limits,
            idle=limits,
            lone=limits,
        )

    # -- controls for tests --------------------------------------------------------------------

    def hold(self) -> None:
        """Block the next step inside `execute`."""
        self._blocked.clear()
        self._open.clear()

    def wait_held(self, timeout_s: float = 10.0) -> None:
        """Return once a step is blocked; TimeoutError if none comes."""
        if not self._blocked.wait(timeout_s):
            raise TimeoutError("no step has begun")

    def release(self) -> None:
        self._open.set()

    def fail_at(
        self, place: str, *, times: int = 1, after: int = 0, error: Exception | None = None
    ) -> None:
        """Raise at `place` `times` times, after letting `after` calls pass."""
        self._faults.append(
            _Fault(place, times, after, error or RuntimeError(f"injected at {place}"))
        )

    @property
    def held_slots(self) -> list[int]:
        """Slots with state in the engine."""
        return sorted(self._held)

    def _fault(self, place: str) -> Exception | None:
        for fault in self._faults:
            if fault.place == place and fault.times > 0:
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                return fault.error
        return None

    def _raise_fault(self, place: str) -> None:
        if error := self._fault(place):
            raise error

    # -- contract ------------------------------------------------------------------------------

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @property
    def memory_need(self) -> MemoryNeed:
        return MemoryNeed(bytes_per_token=8)

    def allocate(self, total_blocks: int) -> None:
        block_size = self._capabilities.block_size
        self._cache = [[0] * block_size for _ in range(total_blocks + 1)]

    def admit(self, slot: Slot, request: Request) -> None:
        assert slot.id not in self._held, f"slot {slot.id} is taken"
        self._raise_fault("admit")
        self._held[slot.id] = _Held(slot, request)

    @hookimpl
    def lower_plan(self, plan: StepPlan) -> list[_Segment]:
        if error := self._fault("lower"):
            raise SlotFault(plan.slot_ids[:1], str(error))
        self.plans.append(plan)
        segments = [self._lower_slice(piece) for piece in plan.prefill]
        segments.extend(self._lower_row(row) for row in plan.decode)
        return segments

    def _lower_slice(self, piece: PrefillSlice) -> _Segment:
        held = self._held[piece.slot_id]
        assert not held.committed, f"slot {piece.slot_id} is past its prompt"
        assert piece.start == held.slot.length
        return _Segment(
            held, tuple(held.slot.table.blocks), piece.start, piece.tokens, 0, piece.is_last
        )

    def _lower_row(self, row: DecodeRow) -> _Segment:
        held = self._held[row.slot_id]
        assert held.committed, f"slot {row.slot_id} has not finished its prompt"
        assert row.position == held.slot.length
        return _Segment(
            held, tuple(held.slot.table.blocks), row.position, (row.token,), row.max_draft, True
        )

    @hookimpl
    def execute(self, lowered: list[_Segment]) -> StepResult:
        if not self._open.is_set():
            self._blocked.set()
            self._open.wait(60.0)
        if self.step_ms:
            time.sleep(self.step_ms / 1000)
        self._raise_fault("step")
        return StepResult(self._run(lowered))

    def _run(self, segments: list[_Segment]) -> dict[int, SlotOutput]:
        return {segment.held.slot.id: self._run_segment(segment) for segment in segments}

    def _run_segment(self, segment: _Segment) -> SlotOutput:
        if error := self._fault("row"):
            return SlotOutput(error=str(error))
        held, blocks = segment.held, segment.blocks
        position = segment.start
        for token in segment.tokens:
            self.write(blocks, position, token)
            held.state = mix(held.state, token)
            position += 1
        if not segment.yields:
            return SlotOutput()
        tokens = [self._next(held, blocks, position - 1)]
        if segment.drafts:
            self._verify(segment, position, tokens)
        return SlotOutput(tuple(tokens), None, segment.drafts)

    def _verify(self, segment: _Segment, position: int, tokens: list[int]) -> None:
        """Extend `tokens` by what the accepted drafts lead to; rejected rows soil the cache."""
        held, blocks = segment.held, segment.blocks
        accepted = min(self._accept[self._turns % len(self._accept)], segment.drafts)
        self._turns += 1
        for _ in range(accepted):
            self.write(blocks, position, tokens[-1])
            held.state = mix(held.state, tokens[-1])
            tokens.append(self._next(held, blocks, position))
            position += 1
        for offset in range(segment.drafts - accepted):
            self.write(blocks, position + offset, 1 + offset)

    def _next(self, held: _Held, blocks: Sequence[int], position: int) -> int:
        chain = self.read(blocks, position)
        # An earlier position is read as well, so that a block that was lost to another slot shows.
        chain ^= mix(self.read(blocks, chain % (position + 1)), 0)
        return self.mind.next_token(Context(held.request, position, chain, held.state))

    @hookimpl
    def commit_prefill(self, slot: Slot) -> None:
        self._raise_fault("commit")
        held = self._held[slot.id]
        assert slot.length == held.request.total_tokens
        held.committed = True

    @hookimpl
    def retire(self, slot: Slot) -> None:
        self._held.pop(slot.id, None)
        self._raise_fault("retire")

    def close(self) -> None:
        self.closed = True

    # -- cache ---------------------------------------------------------------------------------

    def write(self, blocks: Sequence[int], position: int, token: int) -> None:
        """Store the hash chain at `position`, built on what the cache holds before it."""
        size = self._capabilities.block_size
        before = self.read(blocks, position - 1) if position else _SEED
        self._cache[blocks[position // size]][position % size] = mix(before, token)

    def read(self, blocks: Sequence[int], position: int) -> int:
        size = self._capabilities.block_size
        return self._cache[blocks[position // size]][position % size]


def rows_of(plans: Iterable[StepPlan], slot_id: int) -> list[PrefillSlice | DecodeRow]:
    """Every row group that the plans hold for a slot."""
    found: list[PrefillSlice | DecodeRow] = []
    for plan in plans:
        found.extend(piece for piece in plan.prefill if piece.slot_id == slot_id)
        found.extend(row for row in plan.decode if row.slot_id == slot_id)
    return found
