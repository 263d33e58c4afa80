"""Any trace of arrivals, departures, faults and exhaustion: nothing is lost, nothing is mixed up.

Slow readers reach the scheduler as cancels and stop strings as Finish commands; both are here.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from luce_core.request import FinishReason, Request
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.byte_vocab import EOS
from luce_core.testing.driver import Driver, run_alone
from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.leak_check import leak_check

BLOCKS = 9
BLOCK_SIZE = 4


class RandomTraces(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 4),
        max_draft=st.integers(0, 5),
        accept=st.lists(st.integers(0, 5), min_size=1, max_size=5),
        chunk=st.sampled_from([1, 3, 8, 64]),
        burst=st.sampled_from([0, 0, 2]),
        reserve=st.sampled_from(["rolling", "rolling", "full"]),
    )
    def start(self, slots, max_draft, accept, chunk, burst, reserve) -> None:
        self.engine = FakeEngine(
            HashMind(eos_every=30),
            slots=slots,
            block_size=BLOCK_SIZE,
            max_context=64,
            max_draft=max_draft,
            accept=accept,
            chunk=chunk,
        )
        self.engine.allocate(BLOCKS)
        self.driver = Driver(
            self.engine,
            pool_blocks=BLOCKS,
            policy=SchedulerPolicy(
                admission_coalesce_ms=0,
                first_burst_steps=burst,
                reserve=reserve,
                max_step_faults=1000,
            ),
        )
        self.requests: list[Request] = []
        self.disturbed: set[int] = set()
        self.cut: dict[int, int] = {}

    @rule(
        length=st.integers(1, BLOCKS * BLOCK_SIZE),
        salt=st.integers(0, 5),
        max_tokens=st.integers(1, 40),
    )
    def submit(self, length: int, salt: int, max_tokens: int) -> None:
        prompt = [(salt + 3 * index) % 90 for index in range(length)]
        request = self.driver.submit(prompt, max_tokens=max_tokens, stop_ids=[EOS])
        self.requests.append(request)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 99))
    def client_leaves(self, index: int) -> None:
        request = self.requests[index % len(self.requests)]
        self.driver.cancel(request)
        self.disturbed.add(request.id)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 99), tokens=st.integers(1, 5))
    def stop_string_is_found(self, index: int, tokens: int) -> None:
        request = self.requests[index % len(self.requests)]
        if request.finish is None and len(request.generated) >= tokens:
            self.driver.finish(request, tokens)
            self.cut.setdefault(request.id, tokens)

    @rule(place=st.sampled_from(["admit", "lower", "row", "step", "commit", "retire"]))
    def fault(self, place: str) -> None:
        self.engine.fail_at(place)

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "driver"):
            self.driver.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        leak_check(self.driver.scheduler, engine=self.engine)
        lonely = FakeEngine(HashMind(eos_every=30), block_size=BLOCK_SIZE, max_context=64, slots=1)
        lonely.allocate(BLOCKS)
        for request in self.requests:
            output = self.driver.output(request)
            assert output.ends == 1
            solo = run_alone(
                lonely,
                request.prompt,
                max_tokens=request.max_tokens,
                pool_blocks=BLOCKS,
                stop_ids=[EOS],
            )
            assert output.tokens == solo.tokens[: len(output.tokens)]
            if output.finish in (FinishReason.LENGTH, FinishReason.STOP):
                if (
                    request.id in self.cut
                    and output.usage.completion_tokens == self.cut[request.id]
                ):
                    assert len(output.tokens) >= self.cut[request.id]
                else:
                    assert output.tokens == solo.tokens
                    assert output.finish == solo.finish
            elif output.finish is FinishReason.CANCELLED:
                assert request.id in self.disturbed


RandomTraces.TestCase.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
TestRandomTraces = RandomTraces.TestCase
