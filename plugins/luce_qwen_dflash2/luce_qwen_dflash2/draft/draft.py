"""The draft as an engine uses it: features of the target in, blocks of draft tokens out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from luce_core.ops.registry import OpBinder
from luce_core.sampling.sampler import DraftNoise
from luce_qwen_dflash2.draft.backlog import BACKLOG_ROWS, Backlog
from luce_qwen_dflash2.draft.blocks import Piece, draft_buffers, pack_pieces
from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.draft.model import DraftModel
from luce_qwen_dflash2.draft.rings import Rings

# Rows that one injection takes at once: bounds the staged features (100 KiB a row at 27B).
INJECT_ROWS = 512

GREEDY = DraftNoise(0.0, ())


class Kept(NamedTuple):
    """Rows of a step that stay in their slot: `rows` of them from row `first_row` of the features
    on, at positions `position`, `position` + 1, ..."""

    slot_id: int
    first_row: int
    position: int
    rows: int


class Anchor(NamedTuple):
    """A slot that wants `drafts` proposals: its last emitted token, which has not been through the
    target yet, and that token's position. `noise` has a key for each proposal unless greedy."""

    slot_id: int
    token: int
    position: int
    drafts: int
    noise: DraftNoise = GREEDY


class Draft:
    """One draft model with a ring per slot. Engine thread only.

    An engine injects the features of every token that stays in a slot, in order and without gaps,
    as the steps bring them; then a block may be proposed right behind. What the target rejects is
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
    ) -> None:
        self._config = config
        self._max_draft = max_draft
        self._max_context = max_context
        self._filled = [0] * slots
        self._backlog = Backlog(slots, model.features, ops.dtype, ops.device)
        self._rings = rings = Rings(
            config,
            slots=slots,
            max_context=max_context,
            max_rows=INJECT_ROWS,
            dtype=ring_dtype,
            device=ops.device,
        )
        stage = torch.zeros(INJECT_ROWS, model.features, dtype=ops.dtype, device=ops.device)
        temperatures = torch.zeros(slots + 1, device=ops.device)
        keys = torch.zeros(slots + 1, max_draft, dtype=torch.int64, device=ops.device)
        self._stage, self._temperatures, self._keys = stage, temperatures, keys
        self._inject_buffers = draft_buffers(INJECT_ROWS, slots, ops.device)
        self._block_buffers = draft_buffers(slots * (1 + max_draft), slots, ops.device)
        self._inject = ops.program(
            lambda batch: model.inject(batch, stage, rings.layers),
            max_rows=INJECT_ROWS,
            max_logits=1,
            max_segments=slots,
            max_blocks=1,
        ).run
        self._propose = ops.program(
            lambda batch: model.propose(batch, rings.layers, temperatures, keys),
            max_rows=self._block_buffers.max_rows,
            max_logits=slots * max_draft,
            max_segments=slots,
            max_blocks=1,
        ).run

    def reset(self, slot_id: int, position: int = 0) -> None:
        """The slot is admitted or retired: it holds nothing, and `position` comes next. Its ring is
        not cleared, since no position from there on is read before it has been injected; a slot
        that begins inside a context drafts badly until its window is behind that position."""
        self._filled[slot_id] = position
        self._backlog.clear(slot_id)

    def filled(self, slot_id: int) -> int:
        """Tokens injected so far: the position of the anchor that may be proposed for."""
        return self._filled[slot_id]

    @property
    def held_slots(self) -> list[int]:
        """Slots that hold tokens."""
        return [slot_id for slot_id, filled in enumerate(self._filled) if filled]

    def room(self, slot_id: int) -> int:
        """Drafts that fit behind the slot's tokens before the draft's own context ends."""
        return max(0, min(self._max_draft, self._max_context - self._filled[slot_id] - 1))

    def inject(self, features: Tensor, kept: Sequence[Kept]) -> None:
        """Take in a step: `features` [T, F] has the residual streams behind `target_layers` side by
        side; the rows of `kept` (one entry a slot) enter, the others never happened.

        Few rows wait in a backlog until their slot drafts or has no room for more.
        """
        for each in kept:
            assert each.position == self._filled[each.slot_id], (each, self._filled[each.slot_id])
            self._filled[each.slot_id] += each.rows
        at_once = [k for k in kept if not self._backlog.has_room(k.slot_id, k.rows)]
        if at_once:
            rows = {each.slot_id: each.rows for each in kept}
            self._catch_up({s: self._filled[s] - rows.get(s, 0) for s in range(len(self._filled))})
            self._inject_all(features, [k for k in at_once if k.rows > BACKLOG_ROWS])
        waiting = [k for k in kept if k.rows <= BACKLOG_ROWS]
        self._backlog.add(features, [(k.slot_id, k.first_row, k.rows) for k in waiting])

    def _catch_up(self, stops: Mapping[int, int]) -> None:
        """Empty the backlogs of these slots, which end before the position `stops[slot_id]`."""
        waiting = [
            Kept(slot_id, self._backlog.first_row(slot_id), stop - count, count)
            for slot_id, stop in stops.items()
            if (count := self._backlog.count(slot_id))
        ]
        self._inject_all(self._backlog.rows, waiting)
        for each in waiting:
            self._backlog.clear(each.slot_id)

    def _inject_all(self, features: Tensor, kept: Sequence[Kept]) -> None:
        newest = [_newest(each, self._rings.longest) for each in kept if each.rows]
        for part in _chunks(newest, INJECT_ROWS):
            self._inject_part(features, part)

    def _inject_part(self, features: Tensor, kept: Sequence[Kept]) -> None:
        numbers = [row for k in kept for row in range(k.first_row, k.first_row + k.rows)]
        rows = torch.tensor(numbers, device=self._stage.device)
        self._stage[: len(numbers)] = features.index_select(0, rows)
        self._rings.place(
            [k.slot_id for k in kept], [k.position for k in kept], [k.rows for k in kept]
        )
        pieces = [Piece(k.slot_id, k.position, (0,) * k.rows) for k in kept]
        self._inject(pack_pieces(pieces, self._inject_buffers, with_logits=False))

    def propose(self, anchors: Sequence[Anchor]) -> list[list[int]]:
        """`drafts` tokens for each anchor: one pass for all of them. Every anchor stands right
        behind what its slot has injected, and asks for 1 to `room` drafts."""
        if not anchors:
            return []
        for anchor in anchors:
            assert anchor.position == self._filled[anchor.slot_id], anchor
            assert 1 <= anchor.drafts <= self.room(anchor.slot_id), anchor
        self._catch_up({anchor.slot_id: anchor.position for anchor in anchors})
        self._set_noise(anchors)
        mask = self._config.mask_token
        pieces = [Piece(a.slot_id, a.position, (a.token, *(mask,) * a.drafts)) for a in anchors]
        batch = pack_pieces(pieces, self._block_buffers, with_logits=True)
        tokens = iter(self._propose(batch).tolist())
        return [[next(tokens) for _ in range(anchor.drafts)] for anchor in anchors]

    def _set_noise(self, anchors: Sequence[Anchor]) -> None:
        device = self._keys.device
        slots = torch.tensor([anchor.slot_id for anchor in anchors], device=device)
        self._temperatures[slots] = torch.tensor(
            [anchor.noise.temperature for anchor in anchors], device=device
        )
        for anchor in anchors:
            if anchor.noise.temperature > 0.0:
                keys = torch.tensor(anchor.noise.keys[: anchor.drafts], device=device)
                self._keys[anchor.slot_id, : anchor.drafts] = keys


def _newest(kept: Kept, most: int) -> Kept:
    """The last `most` rows: of those before, no ring would hold anything."""
    skipped = max(0, kept.rows - most)
    return Kept(
        kept.slot_id, kept.first_row + skipped, kept.position + skipped, kept.rows - skipped
    )


def _chunks(kept: Sequence[Kept], most: int) -> Iterator[list[Kept]]:
    """Parts of at most `most` rows, in order; a slot's rows may spread over several."""
    part: list[Kept] = []
    room = most
    for slot_id, first_row, position, rows in kept:
        while rows:
            count = min(rows, room)
            part.append(Kept(slot_id, first_row, position, count))
            first_row, position, rows = first_row + count, position + count, rows - count
            room -= count
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part
