"""The draft as an engine uses it: features of the target in, blocks of draft tokens out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from luce_core.ops.registry import OpBinder
from luce_core.plan import DecodeRow
from luce_core.sampling.sampler import GREEDY_NOISE, DraftNoise
from luce_qwen_dflash2.draft.backlog import Backlog, Kept, Run
from luce_qwen_dflash2.draft.blocks import Piece, PieceBatches
from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.draft.model import DraftModel
from luce_qwen_dflash2.draft.rings import Rings
from luce_qwen_dflash2.host_filled import HostFilled

# Rows that one injection takes at once: bounds its activations (100 KiB a row at 27B).
INJECT_ROWS = 512


class Anchor(NamedTuple):
    """A slot that wants `drafts` proposals: its last emitted token, which has not been through the
    target yet, and that token's position. `noise` has a key for each proposal unless greedy."""

    slot_id: int
    token: int
    position: int
    drafts: int
    noise: DraftNoise = GREEDY_NOISE


class Draft:
    """One draft model with a ring per slot. Engine thread only.

    Around each pass of the target an engine calls `open` and `keep`: the pass puts the features of
    all its rows into `backlog`, and those of the tokens that stay in their slots are injected, in
    order and without gaps; then a block may be proposed right behind. What the target rejects is
    never injected. All slots that speculate propose in one pass.
    """

    def __init__(
        self,
        model: DraftModel,
        config: DraftConfig,
        ops: OpBinder,
        *,
        slots: int,
        max_draft: int,
        max_context: int,
        ring_dtype: torch.dtype,
        backlog: Backlog,
    ) -> None:
        self._config = config
        self._max_draft = max_draft
        self._max_context = max_context
        self._filled = [0] * slots
        self.backlog = backlog
        self._rings = rings = Rings(
            config,
            slots=slots,
            max_context=max_context,
            max_rows=INJECT_ROWS,
            dtype=ring_dtype,
            device=ops.device,
        )
        taken = HostFilled(INJECT_ROWS, ops.device)
        temperatures = torch.zeros(slots + 1, device=ops.device)
        keys = torch.zeros(slots + 1, max_draft, dtype=torch.int64, device=ops.device)
        self._taken, self._temperatures, self._keys = taken, temperatures, keys
        self._noisy: set[int] = set()  # slots whose temperature is not 0
        self._injections = PieceBatches(
            max_rows=INJECT_ROWS, slots=slots, with_logits=False, device=ops.device
        )
        self._blocks = PieceBatches(
            max_rows=slots * (1 + max_draft), slots=slots, with_logits=True, device=ops.device
        )
        self._inject = ops.program(
            lambda batch: model.inject(batch, taken.tensor, backlog.rows, rings.layers),
            max_rows=INJECT_ROWS,
            max_logits=1,
            max_segments=slots,
            max_blocks=1,
        ).run
        self._propose = ops.program(
            lambda batch: model.propose(batch, rings.layers, temperatures, keys),
            max_rows=self._blocks.max_rows,
            max_logits=slots * max_draft,
            max_segments=slots,
            max_blocks=1,
        ).run

    def reset(self, slot_id: int, position: int = 0) -> None:
        """The slot is admitted or retired: it holds nothing, and `position` comes next. Its ring is
        not cleared, since no position from there on is read before it has been injected; a slot
        that begins inside a context drafts badly until its window is behind that position."""
        self._filled[slot_id] = position
        self.backlog.forget(slot_id)
        if not any(self._filled):
            self.backlog.clear()

    def filled(self, slot_id: int) -> int:
        """Tokens injected so far: the position of the anchor that may be proposed for."""
        return self._filled[slot_id]

    @property
    def held_slots(self) -> list[int]:
        """Slots that hold tokens, in their rings or waiting."""
        filled = {slot_id for slot_id, filled in enumerate(self._filled) if filled}
        return sorted(filled | {run.slot_id for run in self.backlog.runs(range(len(self._filled)))})

    def room(self, slot_id: int) -> int:
        """Drafts that fit behind the slot's tokens before the draft's own context ends."""
        return max(0, min(self._max_draft, self._max_context - self._filled[slot_id] - 1))

    def open(self, rows: int) -> None:
        """Before a step of so many rows. Steps wait in the backlog until a slot drafts or, as here,
        there is no room for more."""
        if not self.backlog.has_room(rows):
            self._catch_up(range(len(self._filled)))
            self.backlog.clear()
        self.backlog.open(rows)

    def keep(self, kept: Sequence[Kept]) -> None:
        """After the step: the rows of `kept` (one entry a slot) enter, the others never were."""
        for slot_id, _, position, rows in kept:
            assert position == self._filled[slot_id], (slot_id, position, self._filled[slot_id])
            self._filled[slot_id] = position + rows
        self.backlog.keep(kept)

    def keep_all(self, rows: Sequence[DecodeRow]) -> None:
        """After a step of nothing but these rows, which all stay: as `keep`, for less."""
        for slot_id, _, position, _ in rows:
            self._filled[slot_id] = position + 1
        self.backlog.keep_all(rows)

    def drop(self) -> None:
        """Give up what waits: nothing may be proposed for its slots until they are reset."""
        self.backlog.clear()

    def _catch_up(self, slot_ids: Sequence[int]) -> None:
        """Take in what waits of these slots. If that fails, it waits on."""
        runs = self.backlog.runs(slot_ids)
        for part in _parts([_newest(run, self._rings.longest) for run in runs], INJECT_ROWS):
            self._inject_part(part)
        for slot_id in slot_ids:
            self.backlog.forget(slot_id)

    def _inject_part(self, runs: Sequence[Run]) -> None:
        self._taken.fill([row for run in runs for row in run.rows])
        self._rings.place((run.slot_id, run.position, len(run.rows)) for run in runs)
        pieces = [Piece(run.slot_id, run.position, (0,) * len(run.rows)) for run in runs]
        self._inject(self._injections.pack(pieces))

    def propose(self, anchors: Sequence[Anchor]) -> list[list[int]]:
        """`drafts` tokens for each anchor: one pass for all of them. Every anchor stands right
        behind what its slot has injected, and asks for 1 to `room` drafts."""
        if not anchors:
            return []
        for anchor in anchors:
            assert anchor.position == self._filled[anchor.slot_id], anchor
            assert 1 <= anchor.drafts <= self.room(anchor.slot_id), anchor
        self._catch_up([anchor.slot_id for anchor in anchors])
        self._set_noise(anchors)
        mask = self._config.mask_token
        pieces = [Piece(a.slot_id, a.position, (a.token, *(mask,) * a.drafts)) for a in anchors]
        tokens = iter(self._propose(self._blocks.pack(pieces)).tolist())
        return [list(islice(tokens, anchor.drafts)) for anchor in anchors]

    def _set_noise(self, anchors: Sequence[Anchor]) -> None:
        for slot_id, _, _, drafts, noise in anchors:
            is_noisy = noise.temperature > 0.0
            if is_noisy:
                keys = torch.tensor(noise.keys[:drafts], device=self._keys.device)
                self._keys[slot_id, :drafts] = keys
            if is_noisy or slot_id in self._noisy:
                self._temperatures[slot_id] = noise.temperature
                (self._noisy.add if is_noisy else self._noisy.discard)(slot_id)


def _newest(run: Run, most: int) -> Run:
    """The last `most` rows: of those before, no ring would hold anything."""
    skipped = len(run.rows) - most
    if skipped <= 0:
        return run
    return Run(run.slot_id, run.position + skipped, run.rows[skipped:])


def _parts(runs: Sequence[Run], most: int) -> Iterator[list[Run]]:
    """Parts of at most `most` rows, in order; a slot's rows may spread over several."""
    part: list[Run] = []
    room = most
    for slot_id, position, rows in runs:
        while rows:
            now, rows = rows[:room], rows[room:]
            part.append(Run(slot_id, position, now))
            position, room = position + len(now), room - len(now)
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part
