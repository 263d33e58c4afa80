"""Bias, bans, penalties and faults, on logits that are written out."""

from __future__ import annotations

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from luce_core.errors import LuceError, StepFault
from luce_core.ops.reference.greedy_token import greedy_token
from luce_core.sampling.penalties import PenaltyCounts
from luce_core.sampling.rules import SlotRules
from luce_core.sampling.sampler import Sampler

NEG_INF = float("-inf")


def _edited(sampler, slot_id, rows, drafts=()):
    """The scores before temperature: what the sampler takes the argmax of."""
    segment = sampler._segments(rows, [0, len(rows)], [slot_id], [list(drafts)])
    edited = rows.clone()
    sampler._edit(edited, segment)
    return edited


def test_greedy_takes_the_lowest_of_equal_logits(request_of, one_step) -> None:
    sampler = Sampler(2, 6)
    sampler.admit(0, request_of(temperature=0.0))
    sampler.admit(1, request_of(temperature=0.0, logit_bias=((0, 1.0),)))
    rows = torch.tensor([[0.0, 1, 5, 5, 5, 2], [1.0, 2, 2, 0, 2, 2]])
    assert one_step(sampler, rows, [0, 1]) == [2, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_may_have_any_float_type(dtype, request_of, one_step) -> None:
    sampler = Sampler(2, 4)
    sampler.admit(0, request_of(temperature=0.0))
    sampler.admit(1, request_of(temperature=1.0, top_p=0.5))
    rows = torch.tensor([[0.0, 3, 1, 2], [0.0, 3, 1, 2]], dtype=dtype)
    assert one_step(sampler, rows, [0, 1]) == [1, 1]


class TestPenalties:
    def test_presence_and_frequency_leave_prompt_tokens_alone(self, request_of) -> None:
        sampler = Sampler(1, 4)
        sampler.admit(0, request_of(prompt=(1,) * 5, presence_penalty=2.0, frequency_penalty=2.0))
        rows = torch.tensor([[0.0, 3.0, 1.0, -1.0]])
        assert torch.equal(_edited(sampler, 0, rows), rows)

    @pytest.mark.parametrize(("logit", "expected"), [(3.0, 1.5), (-3.0, -6.0)])
    def test_repetition_divides_positive_and_multiplies_negative(
        self, logit, expected, request_of
    ) -> None:
        sampler = Sampler(1, 4)
        sampler.admit(0, request_of(prompt=(1,) * 5, repetition_penalty=2.0))
        rows = torch.tensor([[0.0, logit, 1.0, -1.0]])
        assert _edited(sampler, 0, rows)[0].tolist() == [0.0, expected, 1.0, -1.0]

    def test_presence_counts_once_and_frequency_each_time(self, request_of, one_step) -> None:
        presence, frequency = Sampler(1, 3), Sampler(1, 3)
        presence.admit(0, request_of(temperature=0.0, presence_penalty=2.0))
        frequency.admit(0, request_of(temperature=0.0, frequency_penalty=2.0))
        rows = torch.tensor([[0.0, 10.0, 0.0]])
        for sampler, expected in ((presence, 8.0), (frequency, 6.0)):
            assert one_step(sampler, rows, [0]) + one_step(sampler, rows, [0]) == [1, 1]
            assert _edited(sampler, 0, rows)[0].tolist() == [0.0, expected, 0.0]

    def test_bias_comes_before_penalties(self, request_of) -> None:
        sampler = Sampler(1, 3)
        sampler.admit(0, request_of(prompt=(1,), repetition_penalty=2.0, logit_bias=((1, 6.0),)))
        assert _edited(sampler, 0, torch.tensor([[0.0, 2.0, 0.0]]))[0, 1] == 4.0

    def test_a_preempted_request_keeps_its_counts(self, request_of) -> None:
        params = {"frequency_penalty": 0.5, "presence_penalty": 0.25, "repetition_penalty": 1.5}
        rows = torch.linspace(-2, 2, 6)[None]
        straight, resumed = Sampler(2, 6), Sampler(2, 6)
        straight.admit(0, request_of(prompt=(0, 9), **params))
        tokens = [straight.accept(rows, [0, 1], [0], [[]])[0].tokens[0] for _ in range(7)]
        resumed.admit(1, request_of(prompt=(4,), generated=(5, 5), **params))
        resumed.retire(1)
        resumed.admit(1, request_of(prompt=(0, 9), generated=tuple(tokens), **params))
        assert torch.equal(_edited(resumed, 1, rows), _edited(straight, 0, rows))

    def test_choices_do_not_share_counts(self, request_of, one_step) -> None:
        sampler = Sampler(2, 3)
        for choice in (0, 1):
            sampler.admit(
                choice, request_of(temperature=0.0, frequency_penalty=3.0, choice_index=choice)
            )
        rows = torch.tensor([[0.0, 2.0, 0.0]])
        assert one_step(sampler, rows, [0]) == [1]
        assert one_step(sampler, rows.expand(2, -1), [0, 1]) == [0, 1]

    def test_verify_rows_count_the_drafts_before_them(self, request_of) -> None:
        sampler = Sampler(2, 8)
        params = {"frequency_penalty": 0.5, "presence_penalty": 0.25, "repetition_penalty": 1.5}
        sampler.admit(0, request_of(prompt=(0, 6), generated=(3,), **params))
        drafts = [2, 3, 2, 7]
        rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
        verified = _edited(sampler, 0, rows, drafts)
        for j in range(5):
            sampler.admit(1, request_of(prompt=(0, 6), generated=(3, *drafts[:j]), **params))
            assert torch.equal(_edited(sampler, 1, rows[j : j + 1])[0], verified[j])

    def test_repetition_equals_transformers(self, request_of) -> None:
        sampler = Sampler(1, 500)
        prompt, generated = tuple(range(0, 300, 7)), (1, 2, 2, 450)
        sampler.admit(0, request_of(prompt=prompt, generated=generated, repetition_penalty=1.3))
        rows = torch.randn(1, 500, generator=torch.Generator().manual_seed(2)) * 4
        expected = RepetitionPenaltyLogitsProcessor(1.3)(
            torch.tensor([prompt + generated]), rows.clone()
        )
        assert torch.allclose(_edited(sampler, 0, rows), expected, rtol=1e-6, atol=0)

    def test_counts_take_memory_only_once_a_request_has_penalties(self, request_of) -> None:
        sampler = Sampler(4, 100)
        sampler.admit(0, request_of(temperature=1.0))
        assert sampler._penalties._generated is None
        sampler.admit(1, request_of(presence_penalty=0.1))
        assert sampler._penalties._generated.shape == (4, 100)

    def test_prompt_ids_outside_the_vocabulary_are_ignored(self, request_of) -> None:
        counts = PenaltyCounts(1, 4, "cpu")
        counts.admit(0, request_of(prompt=(1, 4, 9_999), repetition_penalty=2.0))
        assert counts._in_prompt[0].tolist() == [False, True, False, False]


class TestBias:
    @pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
    @pytest.mark.parametrize("bias", [-100.0, -250.0])
    def test_a_ban_holds_across_a_gap_of_300(self, temperature, bias, request_of) -> None:
        sampler = Sampler(1, 5)
        sampler.admit(0, request_of(temperature=temperature, logit_bias=((3, bias),), seed=3))
        plain = torch.tensor([[0.0, 0.0, 0.0, 300.0, 0.0]])
        for _ in range(500):
            assert sampler.accept(plain, [0, 1], [0], [[]])[0].tokens[0] != 3
            (accepted,) = sampler.accept(plain.expand(3, -1), [0, 3], [0], [[3, 3]])
            assert len(accepted.tokens) == 1
            assert accepted.tokens[0] != 3

    @pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
    def test_plus_100_alone_forces_across_a_gap_of_300(
        self, temperature, request_of, one_step
    ) -> None:
        sampler = Sampler(1, 5)
        sampler.admit(0, request_of(temperature=temperature, logit_bias=((2, 100.0),)))
        rows = torch.tensor([[0.0, 300.0, -300.0, 0.0, 0.0]])
        assert {one_step(sampler, rows, [0])[0] for _ in range(50)} == {2}

    def test_among_forced_tokens_scores_and_bias_decide(self, request_of, one_step) -> None:
        sampler = Sampler(1, 4)
        bias = ((1, 100.0), (2, 103.0), (3, 99.0))
        sampler.admit(0, request_of(temperature=0.0, logit_bias=bias))
        assert one_step(sampler, torch.tensor([[9.0, 2, 0, 50]]), [0]) == [2]
        assert one_step(sampler, torch.tensor([[9.0, 4, 0, 50]]), [0]) == [1]

    def test_a_small_bias_is_added(self, request_of, one_step) -> None:
        sampler = Sampler(1, 3)
        sampler.admit(0, request_of(temperature=0.0, logit_bias=((0, -99.0), (2, 1.5))))
        assert one_step(sampler, torch.tensor([[50.0, 1.0, 0.0]]), [0]) == [2]
        assert one_step(sampler, torch.tensor([[120.0, 1.0, 0.0]]), [0]) == [0]

    @pytest.mark.parametrize("token", [-1, 5])
    def test_an_id_outside_the_logits_is_refused_by_name(self, token, request_of) -> None:
        with pytest.raises(LuceError, match=rf"logit_bias: token id {token} .*0\.\.4"):
            SlotRules(request_of(logit_bias=((token, 1.0),)), 5, "cpu")

    def test_stop_ids_wait_for_min_tokens(self, request_of, one_step) -> None:
        rows = torch.tensor([[0.0, 9.0, 5.0, 1.0]])
        stops = frozenset({1, 2, 77})
        sampler = Sampler(2, 4)
        sampler.admit(0, request_of(temperature=0.0, min_tokens=2, stop_ids=stops))
        assert [one_step(sampler, rows, [0])[0] for _ in range(3)] == [3, 3, 1]
        sampler.admit(1, request_of(temperature=0.0, min_tokens=2, stop_ids=stops, generated=(3,)))
        assert sampler.accept(rows.expand(3, -1), [0, 3], [1], [[3, 1]])[0].tokens == (3, 1, 1)


class TestFaults:
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), NEG_INF])
    @pytest.mark.parametrize(
        "params",
        [
            {"temperature": 0.0},
            {"temperature": 0.0, "logprobs": 2},
            {"temperature": 1.0},
            {"temperature": 1.0, "top_p": 0.5, "top_k": 3, "min_p": 0.1},
            {"temperature": 1.0, "repetition_penalty": 2.0, "logit_bias": ((1, -100.0),)},
        ],
    )
    def test_a_bad_row_fails_its_own_slot_only(self, bad, params, request_of) -> None:
        rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(4))
        together, alone = Sampler(3, 8), Sampler(3, 8)
        for slot_id in range(3):
            together.admit(slot_id, request_of(seed=slot_id, **params))
            alone.admit(slot_id, request_of(seed=slot_id, **params))
        poisoned = rows.clone()
        if bad == NEG_INF:
            poisoned[1] = NEG_INF
        else:
            poisoned[1, 6] = bad
        results = together.accept(poisoned, [0, 1, 2, 3], [0, 1, 2], [[], [], []])
        assert results[1].tokens == ()
        assert results[1].logprobs is None
        assert results[1].error.startswith("engine_output_invalid: ")
        for i in (0, 2):
            assert [results[i]] == alone.accept(rows[i : i + 1], [0, 1], [i], [[]])
        (only,) = together.accept(poisoned[1:2], [0, 1], [1], [[]])
        assert only.error.startswith("engine_output_invalid: ")

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("top_p", [0.5, 1.0])
    def test_nothing_left_to_choose_is_an_error_and_never_id_0(
        self, temperature, top_p, request_of
    ) -> None:
        sampler = Sampler(1, 3)
        bias = ((0, -100.0), (1, -100.0), (2, -100.0))
        sampler.admit(0, request_of(temperature=temperature, top_p=top_p, logit_bias=bias))
        (result,) = sampler.accept(torch.zeros(1, 3), [0, 1], [0], [[]])
        assert result.tokens == ()
        assert "no token is left" in result.error

    def test_a_bad_row_behind_a_rejected_draft_is_no_error(self, request_of) -> None:
        sampler = Sampler(1, 3)
        sampler.admit(0, request_of(temperature=0.0))
        rows = torch.tensor([[0.0, 1, 0], [float("nan")] * 3])
        assert sampler.accept(rows, [0, 2], [0], [[2]])[0].tokens == (1,)
        assert sampler.accept(rows, [0, 2], [0], [[1]])[0].error is not None

    def test_masked_logits_are_never_chosen(self, request_of, one_step) -> None:
        sampler = Sampler(1, 4)
        sampler.admit(0, request_of(temperature=100.0))
        rows = torch.tensor([[NEG_INF, 0.0, NEG_INF, 0.0]])
        assert {one_step(sampler, rows, [0])[0] for _ in range(100)} == {1, 3}

    def test_extreme_temperatures_do_not_fail(self, request_of, one_step) -> None:
        for temperature in (1e-38, 1e-6, 1e6):
            sampler = Sampler(1, 4)
            sampler.admit(0, request_of(temperature=temperature, top_p=0.9))
            token = one_step(sampler, torch.tensor([[1e4, -1e4, 0.0, 9e3]]), [0])[0]
            assert token == 0 or temperature > 1

    def test_misuse_by_an_engine_is_a_step_fault(self, request_of) -> None:
        sampler = Sampler(2, 4)
        sampler.admit(0, request_of())
        with pytest.raises(StepFault, match="shape"):
            sampler.accept(torch.zeros(1, 5), [0, 1], [0], [[]])
        with pytest.raises(StepFault, match="slot 0: 1 logit rows for 2 drafts"):
            sampler.accept(torch.zeros(1, 4), [0, 1], [0], [[1, 2]])
        with pytest.raises(StepFault, match="slot 1 was not admitted"):
            sampler.accept(torch.zeros(1, 4), [0, 1], [1], [[]])
        sampler.retire(0)
        sampler.retire(0)
        with pytest.raises(StepFault, match="slot 0"):
            sampler.clip_drafts([0], [[1]])


class TestClipDrafts:
    def _clip(self, drafts, request):
        sampler = Sampler(1, 10)
        sampler.admit(0, request)
        return sampler.clip_drafts([0], [drafts])[0]

    def test_cut_at_the_first_banned_token(self, request_of) -> None:
        assert self._clip([1, 2, 3], request_of(logit_bias=((3, -100.0),))) == [1, 2]
        assert self._clip([1, 2, 3], request_of(logit_bias=((3, -99.0),))) == [1, 2, 3]

    def test_cut_at_tokens_outside_the_forced_ones(self, request_of) -> None:
        assert self._clip([4, 4, 3], request_of(logit_bias=((4, 100.0),))) == [4, 4]

    def test_cut_at_stop_ids_until_min_tokens(self, request_of) -> None:
        stops = frozenset({5})
        assert self._clip([1, 5, 5], request_of(stop_ids=stops, min_tokens=2)) == [1]
        assert self._clip([1, 2, 5], request_of(stop_ids=stops, min_tokens=2)) == [1, 2, 5]
        begun = request_of(stop_ids=stops, min_tokens=2, generated=(7,))
        assert self._clip([1, 5, 5], begun) == [1, 5, 5]

    def test_room_is_left_for_the_token_after_the_drafts(self, request_of) -> None:
        assert self._clip([1, 2, 3], request_of(max_tokens=3)) == [1, 2]
        assert self._clip([1, 2, 3], request_of(max_tokens=3, generated=(1, 1))) == []

    def test_ids_outside_the_vocabulary_are_cut(self, request_of) -> None:
        assert self._clip([1, 10, 2], request_of()) == [1]
        assert self._clip([-1], request_of()) == []


def test_an_unfinished_prompt_has_no_rows_and_yields_no_token(request_of) -> None:
    sampler = Sampler(3, 3)
    for slot_id in range(3):
        sampler.admit(slot_id, request_of(temperature=0.0))
    rows = torch.tensor([[0.0, 1, 0], [0.0, 0, 1]])
    results = sampler.accept(rows, [0, 1, 1, 2], [2, 0, 1], [[], [], []])
    assert [r.tokens for r in results] == [(1,), (), (2,)]
    assert [r.tokens for r in sampler.accept(rows[:0], [0, 0], [0], [[]])] == [()]


def test_best_tokens_that_the_engine_found_change_nothing(request_of) -> None:
    """Rows of every kind, one of each a fault; with and without what greedy_token says of them.
    With it, logits that are not to be read are not there."""
    kinds = (
        {"temperature": 0.0},
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 0.8, "seed": 4, "top_k": 3},
        {"temperature": 0.0, "logit_bias": ((5, 3.0),)},
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 0.0, "min_tokens": 2},
        {"temperature": 0.0, "logprobs": 2},
    )
    count = 2 * len(kinds)
    found = []
    for is_told in (False, True):
        sampler = Sampler(count, 200)
        for slot_id in range(count):
            request = request_of(stop_ids=frozenset({7}), prompt=(1, 2), **kinds[slot_id // 2])
            sampler.admit(slot_id, request)
        random = torch.Generator().manual_seed(1)
        steps = []
        for _ in range(4):
            rows = torch.randn(2 * count, 200, generator=random)
            rows[::3, 7] = 9.0
            rows[2::4, 11] = float("nan")  # the first row of every other slot
            greedy = torch.empty(2 * count, dtype=torch.int32)
            greedy_token(rows, greedy)
            starts = range(0, 2 * count + 1, 2)
            drafts = [[int(rows[2 * slot_id].argmax())] for slot_id in range(count)]
            told = None
            if is_told:
                told, read = greedy, sampler.reads_logits(range(count))
                unread = [row for row in range(2 * count) if row // 2 not in read]
                rows[unread] = float("nan")
            steps.append(sampler.accept(rows, starts, range(count), drafts, told))
        found.append(steps)
    assert found[0] == found[1]
    assert {len(result.tokens) for step in found[0] for result in step} == {0, 1, 2}
