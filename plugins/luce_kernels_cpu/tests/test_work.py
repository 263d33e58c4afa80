"""What a step is said to have to do is what the model file and the batch imply."""

from __future__ import annotations

import pytest
from luce_kernels_cpu.provider import provider

from luce_core.errors import ConfigError
from luce_core.ops.program import Replay, Work
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan
from luce_core.weights.gguf_file import GgufFile

PROMPT = tuple(range(1, 41))
FIRST = StepPlan(1, prefill=(PrefillSlice(0, 0, PROMPT, True), PrefillSlice(1, 0, PROMPT, False)))
NEXT = StepPlan(2, prefill=(PrefillSlice(1, 40, (5, 6), True),), decode=(DecodeRow(0, 7, 40, 2),))
PRODUCTS = ("matmul", "gate_up", "project_heads", "head_token")


def total(calls: tuple[Work, ...]) -> Work:
    return Work(*map(sum, zip(*calls, strict=True)))


@pytest.mark.parametrize("qtype", ["Q8_0", "F32"])
def test_work_is_that_of_the_file_and_the_batch(load, tiny, stepper, qtype) -> None:
    path = tiny("qwen3", qtype)
    steps = stepper(load(path))
    steps.run(FIRST)
    batch = steps.pack(NEXT, {0: (8, 9)})  # 2 rows of slot 1, 3 of slot 0; logits of 1 + 3
    run = steps.engine._run
    assert isinstance(run, Replay)
    work = run.compiled.work(batch)
    with GgufFile.open(path) as gguf:
        matrices = {n: t.shape for n, t in gguf.tensors.items() if len(t.shape) == 2}
        nbytes = sum(t.nbytes for n, t in gguf.tensors.items() if n in matrices)
    if "output.weight" in matrices:
        nbytes -= gguf_bytes(path, "token_embd.weight")
    head = matrices.pop("output.weight", None) or matrices["token_embd.weight"]
    del matrices["token_embd.weight"]
    operations = 2 * 5 * sum(n * k for n, k in matrices.values()) + 2 * 4 * head[0] * head[1]
    products = total(tuple(call for name in PRODUCTS for call in work[name]))
    assert products.int8_operations + products.float_operations == operations
    assert (products.float_operations == 0) == (qtype == "Q8_0")
    # Packed, Q8_0 has 34 bytes in 32 values as in the file, but whole tiles of 16 rows.
    assert products.read_bytes == pytest.approx(nbytes, rel=0.05)
    token = sum(layout.bytes_per_token for layout in steps.engine._model.layouts)
    pairs = (41 + 42) + (41 + 42 + 43)  # keys that each row attends to
    heads, dim, layers = 2, 32, 2
    assert total(work["attention"]) == Work(
        (42 + 43) * token, float_operations=4 * pairs * heads * dim * layers
    )
    assert set(work) == set(run.compiled.profile(batch))
    assert total(work["norm"]) == Work(0)


def gguf_bytes(path, name: str) -> int:
    with GgufFile.open(path) as gguf:
        return gguf.tensors[name].nbytes


def test_rates_are_those_of_a_machine(isa: str) -> None:
    rates = provider().rates(2 << 20)
    assert 1e8 < rates.read_bytes < 1e13
    assert 1e8 < rates.float_operations < 1e14  # also of a build with sanitizers
    assert 1e8 < rates.int8_operations < 1e15


def test_a_buffer_of_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="a buffer of 0 bytes is out of range"):
        provider().rates(0)
