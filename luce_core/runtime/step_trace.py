"""Where the time of steps goes: running sums for metrics, and the last steps for a look back."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class StepRecord(NamedTuple):
    """One step. Seconds; `plan_s` covers commands, admission and planning."""

    step: int
    prefill_rows: int
    decode_rows: int
    plan_s: float
    engine_s: float
    deliver_s: float


class StepTrace:
    """Written by the engine thread, read by anyone: each field is replaced, never half-written."""

    def __init__(self, keep: int = 256) -> None:
        self.recent: deque[StepRecord] = deque(maxlen=keep)
        self.steps = 0
        self.plan_s = 0.0
        self.engine_s = 0.0
        self.deliver_s = 0.0

    def add(self, record: StepRecord) -> None:
        self.recent.append(record)
        self.steps += 1
        self.plan_s += record.plan_s
        self.engine_s += record.engine_s
        self.deliver_s += record.deliver_s
