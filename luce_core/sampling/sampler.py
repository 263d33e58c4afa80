"""Chooses tokens for all slots of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from luce_core.errors import StepFault
from luce_core.request import Request
from luce_core.sampling.accept import BAD_LOGITS, NO_CANDIDATE, Accepted, accept_segment
from luce_core.sampling.best import best_tokens
from luce_core.sampling.filters import has_filters, kept_tokens, row_filters
from luce_core.sampling.logprobs import token_logprobs
from luce_core.sampling.noise import GumbelNoise, row_key
from luce_core.sampling.penalties import PenaltyCounts
from luce_core.sampling.rules import SlotRules

# Noise for scattered tokens costs about this many times more than for whole rows.
_SPARSE_FRACTION = 6
# Bounds the scratch memory of a draw (about 50 bytes for each row and token).
_ROWS_AT_ONCE = 64


# The op kept_tokens: (logits, scaled, top_k, top_p, min_p) -> int8 [R, V].
Keep = Callable[..., Tensor]


class DraftNoise(NamedTuple):
    """What a draft needs to draw as the sampler will: `keys` has one key for each token ahead,
    none if `temperature` is 0."""

    temperature: float
    keys: tuple[int, ...]


GREEDY_NOISE = DraftNoise(0.0, ())


class _Segment(NamedTuple):
    """The logit rows start..stop-1 of one slot: its next token, and one more for each draft."""

    slot_id: int
    rules: SlotRules
    start: int
    stop: int
    drafts: Sequence[int]


class _Row(NamedTuple):
    """A row whose token is not the argmax of the raw logits. `ahead` 0 is the next token."""

    rules: SlotRules
    logit_row: int
    ahead: int

    @property
    def key(self) -> int:
        rules = self.rules
        return row_key(rules.params.seed, rules.choice_index, rules.generated + self.ahead)


class Sampler:
    """Engines call it on the engine thread; its state is keyed by slot id.

    The token of a row is the argmax of its scores plus Gumbel(seed, choice, position, token). The
    scores are the logits after, in this order: logit_bias and bans (min_tokens included);
    repetition, frequency, presence penalty; temperature; min_p; top_k; top_p. Temperature 0 is the
    argmax after bias and penalties. Ties go to the lowest id. A draft is accepted if and only if it
    equals the token of its row, so speculation changes no text at any temperature.
    """

    def __init__(
        self, max_slots: int, vocab_size: int, device: str = "cpu", *, keep: Keep | None = None
    ) -> None:
        """`keep` is the op kept_tokens as a provider does it on the device; None: the core's."""
        self._max_slots = max_slots
        self._vocab_size = vocab_size
        self._device = device
        self._rules: dict[int, SlotRules] = {}
        self._penalties = PenaltyCounts(max_slots, vocab_size, device)
        self._noise = GumbelNoise(vocab_size, device)
        self._keep = keep

    def admit(self, slot_id: int, request: Request) -> None:
        """Take over a request, fresh or preempted: position and counts go on where it stopped."""
        assert 0 <= slot_id < self._max_slots, f"slot {slot_id} of {self._max_slots}"
        rules = SlotRules(request, self._vocab_size, self._device)
        if rules.has_penalties:
            self._penalties.admit(slot_id, request)
        self._rules[slot_id] = rules

    def retire(self, slot_id: int) -> None:
        """Forget the slot. Idempotent."""
        self._rules.pop(slot_id, None)

    def clip_drafts(
        self, slot_ids: Sequence[int], drafts: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Cut each draft list before its first token that `accept` could never accept."""
        pairs = zip(slot_ids, drafts, strict=True)
        return [self._rules_of(slot_id).clip(list(tokens)) for slot_id, tokens in pairs]

    def reads_logits(self, slot_ids: Iterable[int]) -> frozenset[int]:
        """Those of the slots whose logits the next `accept` reads although it is given `greedy`."""
        rules = self._rules
        return frozenset(i for i in slot_ids if i not in rules or rules[i].reads_logits)

    def draw(self, scores: Tensor, slot_ids: Sequence[int], first: int = 0) -> Tensor:
        """Draft tokens [S, K] int64 from a draft's scores [S, K, V], on the device.

        Column k stands for the slot's next token + first + k, and is drawn with the noise that
        `accept` will use there; filters, bias and penalties are not applied.
        """
        segments, columns, width = scores.shape
        assert width == self._vocab_size, f"{width} scores for {self._vocab_size} tokens"
        flat = scores.reshape(-1, width)
        rows = [
            _Row(self._rules_of(slot_id), i * columns + k, first + k)
            for i, slot_id in enumerate(slot_ids)
            for k in range(columns)
        ]
        tokens = best_tokens(flat)[1]
        noisy = [row for row in rows if row.rules.params.temperature > 0.0]
        if noisy:
            index = self._tensor([row.logit_row for row in noisy])
            picked = flat.index_select(0, index).float()
            tokens[index] = self._draw_any(picked, noisy)
        return tokens.view(segments, columns)

    def draft_noise(self, slot_id: int, count: int) -> DraftNoise:
        """For a draft that draws on its own: the slot's next `count` tokens, as `draw` does it.
        No keys where nothing is drawn."""
        rules = self._rules_of(slot_id)
        temperature = rules.params.temperature
        if temperature == 0.0:
            return GREEDY_NOISE
        rows = (_Row(rules, 0, ahead) for ahead in range(count))
        return DraftNoise(temperature, tuple(row.key for row in rows))

    def accept(
        self,
        logits: Tensor,
        cu_logits: Sequence[int],
        slot_ids: Sequence[int],
        drafts: Sequence[Sequence[int]],
        greedy: Tensor | None = None,
    ) -> list[Accepted]:
        """Choose the tokens of a step, in the order of `slot_ids`.

        `logits` [L, V]; segment i has rows cu_logits[i]..cu_logits[i+1]-1: 1 + len(drafts[i]) of
        them, or none (an unfinished prompt), which yields no token. Positions and counts advance by
        what was accepted. A row with NaN, +Inf or nothing to choose fails its own slot only.
        `greedy` [L] is what the op greedy_token makes of the logits, which then are read only for
        the slots that `reads_logits` names.
        """
        one_each = list(cu_logits) == list(range(len(slot_ids) + 1)) and not any(drafts)
        if greedy is not None and one_each and not self.reads_logits(slot_ids):
            return self._accept_best(greedy.tolist(), slot_ids)
        with torch.inference_mode():
            return self._accept(logits, cu_logits, slot_ids, drafts, greedy)

    def _accept_best(self, tokens: list[int], slot_ids: Sequence[int]) -> list[Accepted]:
        """What `_accept` makes of one row for each slot, of which only the best token is read. Most
        steps are like that, and it runs while the caches are cold."""
        accepted = [accept_segment((token,), ()) for token in tokens]
        for slot_id, each in zip(slot_ids, accepted, strict=True):
            self._rules[slot_id].generated += len(each.tokens)
        return accepted

    def _accept(
        self,
        logits: Tensor,
        cu_logits: Sequence[int],
        slot_ids: Sequence[int],
        drafts: Sequence[Sequence[int]],
        greedy: Tensor | None,
    ) -> list[Accepted]:
        segments = self._segments(logits, cu_logits, slot_ids, drafts)
        if not segments:
            return [Accepted(()) for _ in slot_ids]
        chosen = self._choose(logits, segments, greedy)
        results = {s.slot_id: accept_segment(chosen[s.start : s.stop], s.drafts) for s in segments}
        self._add_logprobs(logits, segments, results)
        for segment in segments:
            tokens = results[segment.slot_id].tokens
            segment.rules.generated += len(tokens)
            if segment.rules.has_penalties and tokens:
                self._penalties.add(segment.slot_id, tokens)
        return [results.get(slot_id, Accepted(())) for slot_id in slot_ids]

    def _segments(
        self,
        logits: Tensor,
        cu_logits: Sequence[int],
        slot_ids: Sequence[int],
        drafts: Sequence[Sequence[int]],
    ) -> list[_Segment]:
        if tuple(logits.shape) != (cu_logits[-1], self._vocab_size):
            raise StepFault(
                f"logits have shape {tuple(logits.shape)}, "
                f"expected ({cu_logits[-1]}, {self._vocab_size})"
            )
        segments = []
        for i, (slot_id, tokens) in enumerate(zip(slot_ids, drafts, strict=True)):
            start, stop = cu_logits[i], cu_logits[i + 1]
            if stop == start and not tokens:
                continue
            if stop - start != 1 + len(tokens):
                raise StepFault(
                    f"slot {slot_id}: {stop - start} logit rows for {len(tokens)} drafts"
                )
            segments.append(_Segment(slot_id, self._rules_of(slot_id), start, stop, tokens))
        return segments

    def _rules_of(self, slot_id: int) -> SlotRules:
        rules = self._rules.get(slot_id)
        if rules is None:
            raise StepFault(f"slot {slot_id} was not admitted to the sampler")
        return rules

    def _choose(self, logits: Tensor, segments: list[_Segment], greedy: Tensor | None) -> list[int]:
        """A token id or fault code for each row of the step: one copy to the host."""
        if greedy is None:
            best, tokens = best_tokens(logits)
            greedy = torch.where(best.isfinite(), tokens, BAD_LOGITS)
        special = [s for s in segments if not s.rules.takes_best]
        if special:
            tokens = greedy.long()
            rows = [
                _Row(s.rules, index, index - s.start)
                for s in special
                for index in range(s.start, s.stop)
            ]
            index = self._tensor([row.logit_row for row in rows])
            edited = logits.index_select(0, index).float()
            self._edit(edited, special)
            drawn = self._draw_filtered(edited, rows)
            tokens[index] = torch.where(tokens[index] == BAD_LOGITS, BAD_LOGITS, drawn)
            greedy = tokens
        chosen: list[int] = greedy.tolist()
        return chosen

    def _edit(self, edited: Tensor, segments: list[_Segment]) -> None:
        start = 0
        for segment in segments:
            stop = start + segment.stop - segment.start
            if segment.rules.edits_logits:
                rows = edited[start:stop]
                segment.rules.apply(rows)
                if segment.rules.has_penalties:
                    self._penalties.apply(
                        segment.slot_id, rows, segment.drafts, segment.rules.params
                    )
            start = stop

    def _draw_filtered(self, scores: Tensor, rows: list[_Row]) -> Tensor:
        """Tokens [R] of edited scores [R, V]; `rows` in the same order."""
        best, tokens = best_tokens(scores)
        for filtered in (False, True):
            group = [
                i
                for i, row in enumerate(rows)
                if row.rules.params.temperature > 0.0 and has_filters(row.rules.params) == filtered
            ]
            draw = self._draw_kept if filtered else self._draw_any
            for first in range(0, len(group), _ROWS_AT_ONCE):
                part = group[first : first + _ROWS_AT_ONCE]
                index = self._tensor(part)
                picked = scores if len(part) == len(rows) else scores.index_select(0, index)
                tokens[index] = draw(picked, [rows[i] for i in part])
        return torch.where(best.isfinite(), tokens, NO_CANDIDATE)

    def _draw_any(self, scores: Tensor, rows: list[_Row]) -> Tensor:
        """The argmax of scaled scores plus noise over the whole vocabulary."""
        return best_tokens(self._noise.rows(self._keys(rows)).add_(self._scale(scores, rows)))[1]

    def _draw_kept(self, scores: Tensor, rows: list[_Row]) -> Tensor:
        """The argmax over the kept tokens; where they are few, noise is made for no others."""
        scaled = self._scale(scores, rows)
        filters = row_filters([row.rules.params for row in rows], self._vocab_size, self._device)
        if self._keep is None:
            kept = kept_tokens(scores, scaled, filters)
        else:
            kept = self._keep(scores, scaled, *filters[:3]).view(torch.bool)
        keys = self._keys(rows)
        # On another device counting would wait for it, and noise costs little.
        dense = kept.device.type != "cpu"
        if dense or int(kept.count_nonzero()) * _SPARSE_FRACTION > kept.numel():
            noisy = self._noise.rows(keys).add_(scaled)
            return best_tokens(torch.where(kept, noisy, float("-inf")))[1]
        row, token = kept.nonzero(as_tuple=True)
        noisy = torch.full_like(scaled, float("-inf"))
        noisy[row, token] = self._noise.at(keys[row], token).add_(scaled[row, token])
        return best_tokens(noisy)[1]

    def _scale(self, scores: Tensor, rows: list[_Row]) -> Tensor:
        """(scores - best) / temperature: 0 for the best, so that no temperature overflows."""
        temperature = torch.tensor(
            [row.rules.params.temperature for row in rows],
            dtype=torch.float32,
            device=self._device,
        )
        return (scores - scores.amax(1, keepdim=True)).div_(temperature[:, None])

    def _keys(self, rows: list[_Row]) -> Tensor:
        return self._tensor([row.key for row in rows])

    def _add_logprobs(
        self, logits: Tensor, segments: list[_Segment], results: dict[int, Accepted]
    ) -> None:
        wanted = [s for s in segments if s.rules.params.logprobs is not None]
        rows: list[int] = []
        tokens: list[int] = []
        top: list[int] = []
        for segment in wanted:
            accepted = results[segment.slot_id].tokens
            rows.extend(range(segment.start, segment.start + len(accepted)))
            tokens.extend(accepted)
            top.extend([segment.rules.params.logprobs or 0] * len(accepted))
        if not tokens:
            return
        entries = iter(token_logprobs(logits, rows, tokens, top))
        for segment in wanted:
            result = results[segment.slot_id]
            if result.error is None:
                logprobs = tuple(next(entries) for _ in result.tokens)
                results[segment.slot_id] = result._replace(logprobs=logprobs)

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
