"""The conformance kit on the fake engine, and on engines that break a promise each."""

from __future__ import annotations

import pytest

from luce_core.engine import hookimpl
from luce_core.plan import StepPlan
from luce_core.testing import engine_conformance as kit
from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest
from luce_core.testing.fake_engine import FakeEngine, HashMind, mix

BLOCKS = 64


def subject(engine: FakeEngine) -> EngineUnderTest:
    engine.allocate(BLOCKS)
    return EngineUnderTest(
        engine=engine,
        pool_blocks=BLOCKS,
        prompt_ids=range(200),
        exact=True,
        logprobs=False,
        with_drafts=lambda source: drafting(source),
    )


def drafting(source) -> FakeEngine:
    engine = FakeEngine(slots=6, max_draft=4, accept=(0, 1, 4, 2))
    engine.allocate(BLOCKS)
    return engine


@pytest.fixture(scope="module")
def engine_under_test() -> EngineUnderTest:
    return subject(FakeEngine(slots=6))


class ForgetsToClear(FakeEngine):
    """A slot's state survives its request."""

    def admit(self, slot, request) -> None:
        super().admit(slot, request)
        self._held[slot.id].state = mix(getattr(self, "left", 1), slot.id)

    @hookimpl
    def retire(self, slot) -> None:
        if slot.id in self._held:
            self.left = self._held[slot.id].state
        super().retire(slot)


class MixesUpRows(FakeEngine):
    """The output depends on how many slots are in the step."""

    def _run(self, segments):
        for segment in segments[1:]:
            segment.held.state = mix(segment.held.state, len(segments))
        return super()._run(segments)


class DependsOnChunks(FakeEngine):
    """The state takes in where a slice ends."""

    def _run(self, segments):
        for segment in segments:
            if not segment.held.committed and segment.start:
                segment.held.state = mix(segment.held.state, segment.start)
        return super()._run(segments)


class LowersWithEffect(FakeEngine):
    @hookimpl
    def lower_plan(self, plan: StepPlan):
        for row in plan.decode:
            held = self._held[row.slot_id]
            held.state = mix(held.state, len(self.plans))
        return super().lower_plan(plan)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (ForgetsToClear, kit.test_company_changes_no_tokens),
        (MixesUpRows, kit.test_company_changes_no_tokens),
        (DependsOnChunks, lambda s: kit.test_chunking_changes_no_tokens(s, 16)),
        (LowersWithEffect, kit.test_lowering_a_plan_changes_nothing),
        (ForgetsToClear, kit.test_preemption_changes_no_tokens),
    ],
)
def test_a_broken_promise_is_noticed(broken, test) -> None:
    with pytest.raises(AssertionError):
        test(subject(broken(HashMind(), slots=6)))
