"""What the host does in the middle of a step: replayed around it, with the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from luce_kernels_cpu.graph_testing import LAYOUT, WIDTH, Ops, recorded
from luce_kernels_cpu.recorder import NativeProgram, PartedProgram, compile_recording
from torch import Tensor

from luce_core.ops.cases import Segment
from luce_core.ops.host_op import host_op
from luce_core.ops.record import ReferenceProgram
from luce_core.ops.spec import ArgKind, ArgSpec, OutSpec, Rows
from luce_core.ops.symbols import RecordingRefused

ROWS = ArgSpec("x", ArgKind.ACTIVATION, ("T", "N"), Rows.TOKENS)
ALIKE = OutSpec(Rows.TOKENS, lambda x, *rest: tuple(x.shape))


def on_host(fn: Any, *args: ArgSpec) -> Any:
    return host_op(
        "turning", fn, args=args, out=ALIKE, device=torch.device("cpu"), dtype=torch.float32
    )


def turned_rows(x: Tensor, out: Tensor) -> None:
    out.copy_(x.roll(1, 0) * 0.75)


def forward_with(ops: Ops, between: Any) -> Any:
    """The host's op twice, once right after itself, with values that live across it."""
    norm, product, again = ops.norm(WIDTH), ops.linear(WIDTH, WIDTH), ops.linear(WIDTH, WIDTH)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        turned = between(between(norm(x)))
        y = ops.add(again(between(product(turned))), product(norm(x)))
        rows = ops.gather(ops.add(y, x), batch.logit_rows)
        return rows, ops.greedy(rows)

    return forward


@pytest.mark.parametrize("lengths", [(1,), (5, 1), (7, 3, 1)])
def test_a_step_around_the_host_has_the_bits_of_calls_one_by_one(lengths) -> None:
    ops = Ops()
    recording = recorded(forward_with(ops, on_host(turned_rows, ROWS)))
    program = compile_recording(recording)
    assert isinstance(program, PartedProgram)
    assert program.description == "in 3 parts, with turning between them"
    batch = ops.maker.batch(tuple(Segment(0, length, True) for length in lengths), LAYOUT).batch
    expected = ReferenceProgram(recording)(batch)
    for _ in range(2):
        for mine, wanted in zip(program(batch), expected, strict=True):
            assert torch.equal(mine, wanted)


def test_a_profile_tells_the_hosts_time() -> None:
    ops = Ops()
    program = compile_recording(recorded(forward_with(ops, on_host(turned_rows, ROWS))))
    batch = ops.maker.batch((Segment(0, 3, True),), LAYOUT).batch
    profile = program.profile(batch)
    assert set(profile) == set(program.names) == set(program.work(batch))
    assert profile["turning"] > 0


def test_a_step_without_the_host_is_one_tape() -> None:
    program = compile_recording(recorded(forward_with(Ops(), lambda x: x)))
    assert type(program) is NativeProgram
    assert len(program._parts) == 1


def test_what_is_no_rows_is_not_handed_to_the_host() -> None:
    field = ArgSpec("positions", ArgKind.FIELD, ("T",), Rows.TOKENS)
    op = on_host(lambda x, positions, out: out.copy_(x), ROWS, field)
    ops = Ops()

    def forward(batch: Any) -> Any:
        return ops.greedy(
            ops.gather(op(ops.embed(batch.token_ids), batch.positions), batch.logit_rows)
        )

    with pytest.raises(RecordingRefused, match="the host reads rows only, not positions"):
        compile_recording(recorded(forward))
