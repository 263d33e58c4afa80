"""The head and its best tokens as one record: the tokens of greedy_token, and only logits that are
read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from luce_kernels_cpu.fuse import NO_FUSION
from luce_kernels_cpu.graph_testing import LAYOUT, WIDTH, Forward, Ops, recorded
from luce_kernels_cpu.recorder import compile_recording
from luce_kernels_cpu.structs import Op
from torch import Tensor

from luce_core.ops.cases import Segment
from luce_core.weights.quant_types import QUANT_TYPES, QuantTensor

SEGMENTS = (Segment(0, 9, True), Segment(20, 1), Segment(5, 3), Segment(3, 12))
NAN, INF = float("nan"), float("inf")


def head(ops: Ops, linear: Any, *, returned: bool = True) -> Forward:
    def forward(batch: Any) -> Any:
        logits = linear(ops.gather(ops.embed(batch.token_ids), batch.logit_rows))
        tokens = ops.greedy(logits)
        return (tokens, logits) if returned else tokens

    return forward


def batch_of(ops: Ops) -> Any:
    batch = ops.maker.batch(SEGMENTS, LAYOUT).batch
    batch.token_ids.copy_(ops.maker.integers(0, 64, batch.rows))
    return batch


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("qtype", "vocab"), [("Q4_0", 1000), ("Q8_0", 17), ("F16", 5), ("Q6_K", 64)]
)
def test_tokens_and_logits_are_those_of_the_plain_step(
    isa: str, threads: int, qtype: str, vocab: int
) -> None:
    ops = Ops(threads)
    width = 256 if qtype == "Q6_K" else WIDTH
    ops.embed = ops.binder.embedding(ops.maker.weight(64, width, "Q8_0"))
    forward = head(ops, ops.linear(vocab, width, qtype, biased=qtype == "Q4_0"))
    fused, plain = (compile_recording(recorded(forward), *how) for how in ((), (NO_FUSION,)))
    assert set(fused.names).isdisjoint(("matmul", "greedy_token"))
    for _ in range(3):
        batch = batch_of(ops)
        for mine, theirs in zip(fused(batch), plain(batch), strict=True):
            assert mine.dtype is theirs.dtype
            assert torch.equal(mine, theirs)


def test_logits_are_written_where_they_are_read_and_nowhere_else(isa: str) -> None:
    ops = Ops()
    program = compile_recording(recorded(head(ops, ops.linear(100, WIDTH))))
    batch = batch_of(ops)
    tokens, logits = (each.clone() for each in program(batch))
    read = torch.arange(batch.logits) % 3 == 0
    some_tokens, some_logits = program(replace(batch, logits_read=read.to(torch.int32)))
    assert torch.equal(some_tokens, tokens)
    assert torch.equal(some_logits[read], logits[read])
    # What lies there instead is of values that were made earlier in the step.
    assert not (some_logits[~read] == logits[~read]).all(1).any()


def test_logits_that_no_step_returns_are_never_made() -> None:
    ops = Ops()
    linear = ops.linear(100, WIDTH)
    silent = compile_recording(recorded(head(ops, linear, returned=False)))
    loud = compile_recording(recorded(head(ops, linear)))
    batch = batch_of(ops)
    assert torch.equal(silent(batch), loud(batch)[0])
    made = [
        [record.also for record in program._graph.records if record.op is Op.HEAD_TOKEN]
        for program in (silent, loud)
    ]
    assert [len(also) for (also,) in made] == [0, 1]


def biased_head(ops: Ops, rows: Tensor) -> Forward:
    """Logits that are the bias alone: `rows` [1, V]."""
    vocab = rows.shape[1]
    zeros = torch.zeros(vocab, WIDTH)
    weight = QuantTensor("w", QUANT_TYPES["F32"], (vocab, WIDTH), zeros.view(torch.uint8))
    return head(ops, ops.binder.linear(weight, bias=rows[0].clone()))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({7: 3.0, 70: 3.0, 8: 3.0}, 7),
        ({99: 2.0, 98: 2.0}, 98),
        ({40: 0.0, 41: -0.0, 39: -0.0}, 39),
        ({50: NAN, 3: 1.0}, -1),
        ({50: INF}, -1),
        (dict.fromkeys(range(100), -INF), -1),
        (dict.fromkeys(range(99), -INF), 99),
        ({99: 1e-42}, 99),
    ],
    ids=lambda case: "",
)
def test_ties_go_to_the_lowest_and_faults_to_none(
    isa: str, threads: int, places: dict[int, float], expected: int
) -> None:
    ops = Ops(threads)
    row = torch.full((1, 100), -1.0 if expected != 99 or 99 in places else -5.0)
    for place, value in places.items():
        row[0, place] = value
    program = compile_recording(recorded(biased_head(ops, row)))
    assert "head_token" in program.names
    for _ in range(2):
        tokens = program(batch_of(ops))[0]
        assert tokens.tolist() == [expected] * len(tokens)


def test_logits_that_an_op_reads_are_made_of_all_rows() -> None:
    ops = Ops()
    linear, norm = ops.linear(64, WIDTH), ops.norm(64)

    def forward(batch: Any) -> Any:
        logits = linear(ops.gather(ops.embed(batch.token_ids), batch.logit_rows))
        return ops.greedy(logits), norm(logits)

    assert "greedy_token" in compile_recording(recorded(forward)).names
