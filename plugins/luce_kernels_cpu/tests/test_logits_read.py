"""Nothing reads logits that a step may leave out: they are NaN here, and every request gets what it
gets where all logits are made."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from luce_kernels_cpu.fuse import Fusion

from luce_core.batch.packed import PackedBatch
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan, StepResult
from luce_core.request import GREEDY, Request, RequestTimes, SamplingParams

PROMPT = (3, 14, 15, 92, 65)
STOP = 7
PARAMS: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "drawn": replace(GREEDY, temperature=0.9, seed=5),
    "logprobs": replace(GREEDY, logprobs=3),
    "biased": replace(GREEDY, logit_bias=((11, 4.0),)),
    "penalised": replace(GREEDY, repetition_penalty=1.3),
    "stops later": replace(GREEDY, min_tokens=5),
}


def constant_drafts(request: Request, width: int) -> list[int]:
    return [1, 2, 3][:width]


class Requests:
    """One request of each kind on an engine, stepped by hand; slot i owns every sixth block."""

    def __init__(self, engine: Any, stepper: Any, *, poison: bool) -> None:
        self.engine = engine
        self.left_out = 0
        if poison:
            engine._run.around = self.poisoned
        self.requests = []
        for slot_id, params in enumerate(PARAMS.values()):
            slot = SimpleNamespace(id=slot_id, table=stepper.slots[slot_id].table)
            request = Request(
                id=slot_id,
                prompt=PROMPT,
                params=params,
                max_tokens=100,
                stop_ids=frozenset({STOP}),
                times=RequestTimes(0.0),
            )
            engine.admit(slot, request)
            self.requests.append(request)

    def poisoned(self, compiled: Any, batch: PackedBatch) -> Any:
        assert batch.logits_read is not None
        logits, tokens = compiled(batch)
        unread = batch.logits_read == 0
        logits[unread] = float("nan")
        self.left_out = int(unread.sum())
        return logits, tokens

    def step(self, plan: StepPlan) -> StepResult:
        result: StepResult = self.engine.execute(self.engine.lower_plan(plan))
        for slot_id, output in result.outputs.items():
            self.requests[slot_id].generated.extend(output.tokens)
        return result

    def prompts(self) -> StepResult:
        slices = (PrefillSlice(i, 0, PROMPT, True) for i in range(len(self.requests)))
        return self.step(StepPlan(1, prefill=tuple(slices)))

    def decode(self, drafts: int) -> StepResult:
        rows = []
        for slot_id, request in enumerate(self.requests):
            position = len(PROMPT) + len(request.generated) - 1
            rows.append(DecodeRow(slot_id, request.generated[-1], position, drafts))
        return self.step(StepPlan(2, decode=tuple(rows)))


@pytest.mark.parametrize("drafts", [0, 3])
def test_no_request_reads_logits_that_were_left_out(load, tiny, stepper, drafts: int) -> None:
    path = tiny()
    runs = []
    for fusion, poison in ((Fusion(), True), (Fusion(head_token=False), False)):
        engine = load(path, fusion=fusion, drafts=constant_drafts)
        requests = Requests(engine, stepper(engine), poison=poison)
        runs.append([requests.prompts(), *(requests.decode(drafts) for _ in range(8))])
        # Of the greedy request, and of the one that may stop at last.
        assert requests.left_out == (2 * (1 + drafts) if poison else 0)
    for mine, theirs in zip(*runs, strict=True):
        assert mine == theirs
        assert all(output.error is None for output in mine.outputs.values())


def test_a_step_of_greedy_requests_alone_needs_no_logits(load, tiny, stepper) -> None:
    engine = load(tiny(), drafts=constant_drafts)
    requests = Requests(engine, stepper(engine), poison=True)
    for slot_id in range(1, len(PARAMS)):
        engine.retire(SimpleNamespace(id=slot_id))
    requests.requests = requests.requests[:1]
    requests.prompts()
    requests.decode(3)
    assert requests.left_out == 4
