"""What steps cost where they run: measured alone, and what goes on around them."""

from __future__ import annotations

from luce_qwen_dflash2.step_costs import StepCosts

# One step moves an average by this share of the difference.
_RATE = 1 / 32
# A step that took longer than so many times what it should says nothing: something else came in
# between.
_ODD = 4.0


class SeenCosts:
    """Costs of steps from the start of one to the start of the next.

    Planning, text and clients take their time by the number of slots, whatever is drafted: it is
    learnt from plain steps, of which there are always some.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._around_s = [0.0] * len(costs.table)

    def took(self, slots: int, seconds: float, *, steps: int) -> None:
        """`steps` plain steps of so many slots took so many seconds each, start to start."""
        alone_s, around_s = self._costs.seconds(slots, 0), self._around_s[slots]
        if seconds <= _ODD * (alone_s + around_s):
            rate = min(1.0, steps * _RATE)
            self._around_s[slots] += rate * (max(0.0, seconds - alone_s) - around_s)

    def of(self, slots: int) -> StepCosts:
        """The costs of steps of so many slots; no others are in it."""
        around_s = self._around_s[slots]
        row = tuple([seconds + around_s for seconds in self._costs.table[slots]])
        return StepCosts((*[()] * slots, row))
