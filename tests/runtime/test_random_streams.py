"""Random arrivals, readers that stall or leave, stop strings and faults, through hub and pipeline.

The engine, the scheduler, the hub and the text pipeline are the real ones, on one thread with a
fake clock; only sockets are missing.
"""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from luce_core.errors import Overloaded
from luce_core.plan import TokenEvent
from luce_core.request import GREEDY, FinishReason, Request, RequestTimes
from luce_core.runtime.hub import Hub, StreamLimits
from luce_core.runtime.inbox import Inbox
from luce_core.runtime.step_loop import StepLoop
from luce_core.runtime.token_stream import StreamChunk, TokenStream
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.scheduler.scheduler import Scheduler
from luce_core.testing.byte_vocab import EOS, byte_metadata
from luce_core.testing.driver import run_alone
from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.leak_check import leak_check
from luce_core.text.detokenizer import Detokenizer
from luce_core.text.output_parser import PlainParser
from luce_core.text.pipeline import TextPipeline
from luce_core.text.stop_strings import StopSet, StopStrings
from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.typed_metadata import TypedMetadata

BLOCKS, BLOCK_SIZE = 12, 4
TOKENIZER = Tokenizer.from_metadata(TypedMetadata("fake", byte_metadata()))
LIMITS = StreamLimits(buffer_bytes=24, stalled_reader_s=10.0, ping_s=5.0)


class Observer:
    """Counts what the hub reports."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.aborted = 0

    def token_event(self, stream: TokenStream, tokens: int, now: float) -> None:
        assert tokens > 0

    def request_ended(self, stream: TokenStream, event: TokenEvent) -> None:
        self.ended.append(stream.request.id)

    def rejected(self, code: str) -> None: ...

    def reader_aborted(self, cause: str) -> None:
        self.aborted += 1


class Reader:
    """A handler: reads when told to, and keeps what it has got."""

    def __init__(self, stream: TokenStream, stops: list[str]) -> None:
        self.stream = stream
        self.stops = stops
        self.text = ""
        self.end: StreamChunk | None = None
        self.left = False


class RandomStreams(RuleBasedStateMachine):
    @initialize(max_draft=st.integers(0, 3), slots=st.integers(1, 3))
    def start(self, max_draft: int, slots: int) -> None:
        self.now = 0.0
        self.engine = FakeEngine(
            HashMind(eos_every=40),
            slots=slots,
            block_size=BLOCK_SIZE,
            max_context=64,
            max_draft=max_draft,
            accept=(0, 2, 1),
        )
        self.engine.allocate(BLOCKS)
        self.inbox = Inbox()
        self.observer = Observer()
        self.hub = Hub(
            self.inbox,
            max_unfinished=5,
            limits=LIMITS,
            observer=self.observer,
            clock=lambda: self.now,
        )
        policy = SchedulerPolicy(admission_coalesce_ms=0, max_step_faults=1000)
        self.scheduler = Scheduler(self.engine, pool_blocks=BLOCKS, policy=policy)
        self.loop = StepLoop(
            self.engine, self.scheduler, self.inbox, self.hub.deliver, max_step_faults=1000
        )
        self.readers: list[Reader] = []
        self.aio = asyncio.new_event_loop()

    @rule(
        length=st.integers(1, 40),
        max_tokens=st.integers(1, 60),
        stops=st.lists(st.text("abcdefgh", min_size=1, max_size=2), max_size=2),
    )
    def submit(self, length: int, max_tokens: int, stops: list[str]) -> None:
        try:
            self.hub.reserve(1)
        except Overloaded:
            assert self.hub.unfinished == 5
            return
        request = Request(
            id=self.hub.next_id(),
            prompt=tuple((5 * i + length) % 90 for i in range(length)),
            params=GREEDY,
            max_tokens=self.scheduler.rule.cap_max_tokens(length, max_tokens),
            stop_ids=frozenset({EOS}),
            times=RequestTimes(self.now),
        )
        pipeline = TextPipeline(Detokenizer(TOKENIZER), StopStrings(StopSet(stops)), PlainParser())
        self.readers.append(Reader(self.hub.open(request, pipeline), stops))

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 99))
    def client_reads(self, index: int) -> None:
        reader = self.readers[index % len(self.readers)]
        if not reader.left:
            self.read(reader)

    def read(self, reader: Reader) -> None:
        """Read once; a stream with nothing to say is left waiting and woken by a ping."""

        async def once() -> StreamChunk:
            task = asyncio.ensure_future(reader.stream.read(lambda: self.now))
            await asyncio.sleep(0)
            if not task.done():
                reader.stream.quiet_since = self.now - LIMITS.ping_s
                reader.stream.ping_if_quiet(self.now, LIMITS.ping_s)
            return await task

        chunk = self.aio.run_until_complete(once())
        assert not (chunk.is_ping and chunk.delta.content)
        reader.text += chunk.delta.content
        if chunk.finish is not None:
            reader.end = chunk
            reader.left = True
            self.hub.release(reader.stream)

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 99))
    def client_leaves(self, index: int) -> None:
        reader = self.readers[index % len(self.readers)]
        reader.left = True
        self.hub.release(reader.stream)
        self.hub.release(reader.stream)

    @rule(seconds=st.floats(0.1, 12.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.hub.sweep(self.now)

    @rule(place=st.sampled_from(["admit", "lower", "row", "step", "commit"]))
    def fault(self, place: str) -> None:
        self.engine.fail_at(place)

    @rule(count=st.integers(1, 10))
    def steps(self, count: int) -> None:
        for _ in range(count):
            if not (self.scheduler.is_idle and not self.inbox.has_commands):
                self.loop.step()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            assert self.hub.unfinished <= 5

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        while not (self.scheduler.is_idle and not self.inbox.has_commands):
            self.loop.step()
        for reader in self.readers:
            if not reader.left:
                self.read(reader)
                assert reader.end is not None
        self.aio.close()
        leak_check(self.scheduler, hub=self.hub, engine=self.engine)
        assert self.hub.open_readers == 0
        assert sorted(self.observer.ended) == [r.stream.request.id for r in self.readers]
        lonely = FakeEngine(HashMind(eos_every=40), slots=1, block_size=BLOCK_SIZE, max_context=64)
        lonely.allocate(BLOCKS)
        for reader in self.readers:
            if reader.end is None or reader.end.finish not in (
                FinishReason.STOP,
                FinishReason.LENGTH,
            ):
                continue
            request = reader.stream.request
            solo = run_alone(
                lonely,
                request.prompt,
                max_tokens=request.max_tokens,
                pool_blocks=BLOCKS,
                stop_ids=[EOS],
            )
            whole = bytes(token for token in solo.tokens if token < 256).decode()
            ends = [whole.find(stop) + len(stop) for stop in reader.stops if stop in whole]
            if not ends:
                assert reader.text == whole
                assert reader.end.finish == solo.finish
                assert reader.end.usage is not None
                assert reader.end.usage.completion_tokens == len(solo.tokens)
            else:
                assert reader.end.finish is FinishReason.STOP
                assert whole.startswith(reader.text)
                assert reader.end.usage is not None
                assert reader.end.usage.completion_tokens == min(ends)


RandomStreams.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestRandomStreams = RandomStreams.TestCase
