"""Says once that a draft does not fit its target: drafting would go on and never be of use."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

BLOCKS = 200
LEAST_SHARE = 0.05


class AcceptanceWatch:
    """Counts drafts over BLOCKS verified blocks at a time, and warns once."""

    def __init__(self) -> None:
        self._blocks = self._drafts = self._accepted = 0
        self._has_warned = False

    def add(self, drafts: int, accepted: int) -> None:
        """One verified block."""
        self._blocks += 1
        self._drafts += drafts
        self._accepted += accepted
        if self._blocks < BLOCKS:
            return
        if self._accepted < LEAST_SHARE * self._drafts and not self._has_warned:
            self._has_warned = True
            log.warning(
                "of the last %d drafts, %d were accepted (%.1f %%); is the draft model made for "
                "this model?",
                self._drafts,
                self._accepted,
                100 * self._accepted / self._drafts,
            )
        self._blocks = self._drafts = self._accepted = 0
