"""Caches, block order, recording, and what the loader refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from luce_core.errors import ConfigError, ModelFileError
from luce_core.ops.core_ops import core_registry
from luce_core.ops.record import ReferenceRecorder
from luce_core.ops.registry import OpRegistry
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan
from luce_core.testing.driver import Driver
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

IDS = [(7 * index + 3) % 250 for index in range(50)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    model = SyntheticModel(arch="qwen3", qtype="F32", width=64, heads=2, kv_heads=1, head_dim=32)
    return write_synthetic(tmp_path_factory.mktemp("tiny") / "tiny.gguf", model)


def rewritten(source: Path, target: Path, *, change=None, metadata=None) -> Path:
    """A copy of a model with some tensors and keys replaced."""
    with GgufFile.open(source) as gguf:
        values = {**gguf.metadata.values, **(metadata or {})}
        tensors = dict(gguf.tensors)
        if change is not None:
            change(tensors)
        return write_gguf(target, gguf.architecture, values, tensors)


@pytest.mark.parametrize(
    ("cache", "tolerance"), [("f16", 0.002), ("bf16", 0.02), ("q8_0", 0.03), ("q4_0", 0.4)]
)
def test_cache_types_stay_close_to_f32(cache, tolerance, tiny, load, all_logits) -> None:
    exact = all_logits(load(tiny), IDS)
    stored = all_logits(load(tiny, cache=cache), IDS)
    error = (stored - exact).square().mean().sqrt() / exact.std()
    print(f"{cache}: relative error {error:.4f}")
    assert 0 < error < tolerance


def test_blocks_in_any_order_give_the_same_logits(tiny, load, all_logits) -> None:
    expected = all_logits(load(tiny), IDS)
    engine = load(tiny)
    driver = Driver(engine, pool_blocks=64)
    pool = driver.scheduler.table.pool
    taken = pool.take(64)
    assert taken is not None
    request = driver.submit(IDS, max_tokens=len(IDS))
    order = [9, 60, 3, 41, 7, 22]
    pool.give(taken[:10])
    driver.scheduler.handle(driver.inbox.drain(0.0)[0])
    driver.scheduler.admit()
    slot = request.slot
    assert slot is not None
    slot.table.blocks[:] = order
    first = StepPlan(1, prefill=(PrefillSlice(slot.id, 0, tuple(IDS[:1]), False),))
    engine.execute(engine.lower_plan(first))
    engine._drafts = lambda request, width: IDS[2:]
    row = DecodeRow(slot.id, IDS[1], 1, len(IDS) - 2)
    lowered = engine.lower_plan(StepPlan(2, decode=(row,)))
    with torch.inference_mode():
        assert torch.equal(engine._model.forward(lowered.batch)[0], expected)


def test_a_replayed_recording_equals_the_eager_step_bit_for_bit(tiny, load) -> None:
    def outputs(registry: OpRegistry) -> tuple[list[torch.Tensor], tuple[str, ...]]:
        engine, seen = load(tiny, registry=registry), []
        run = engine._run

        def spy(batch):
            logits, greedy = run(batch)
            seen.append(logits.clone())
            assert greedy.tolist() == logits.argmax(1).tolist()
            return logits, greedy

        engine._run = spy
        driver = Driver(engine, pool_blocks=64)
        for length in (40, 1, 17):
            driver.submit(IDS[:length], max_tokens=5)
            driver.step()
        driver.run()
        return seen, engine._ops.modes

    replaying = core_registry()
    replaying.register_recorder(ReferenceRecorder().compile, provider="reference", device="cpu")
    eager, eager_modes = outputs(core_registry())
    replayed, replayed_modes = outputs(replaying)
    assert "op by op" in eager_modes[0]
    assert replayed_modes == ("replayed by reference",)
    assert len(eager) == len(replayed) > 5
    assert all(torch.equal(a, b) for a, b in zip(eager, replayed, strict=True))


def test_norms_and_biases_may_have_any_float_type(tmp_path, load, all_logits) -> None:
    base = write_synthetic(
        tmp_path / "base.gguf", SyntheticModel(arch="qwen2", qtype="Q8_0", seed=3)
    )

    def rounded(dtype: torch.dtype):
        def change(tensors) -> None:
            for name, tensor in tensors.items():
                if len(tensor.shape) == 1:
                    exact = tensor.dequantize().bfloat16()
                    tensors[name] = exact.to(dtype)
            matrix = tensors["blk.0.attn_q.weight"].dequantize().bfloat16()
            tensors["blk.0.attn_q.weight"] = matrix.float()
            key = tensors["blk.1.attn_k.weight"].dequantize().bfloat16()
            tensors["blk.1.attn_k.weight"] = key

        return change

    logits = [
        all_logits(load(rewritten(base, tmp_path / f"{dtype}.gguf", change=rounded(dtype))), IDS)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert torch.equal(*logits)


def test_every_quant_type_loads_and_runs(tmp_path, load) -> None:
    for qtype in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
                  "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "IQ2_XXS", "IQ3_S", "ROCMFP2",
                  "ROCMFP3", "ROCMFP4", "ROCMFP4_FAST", "ROCMFP6", "ROCMFP8"):  # fmt: skip
        model = SyntheticModel(qtype=qtype, width=256, ff=256, heads=4, kv_heads=2)
        path = write_synthetic(tmp_path / "any.gguf", model)
        engine = load(path)
        driver = Driver(engine, pool_blocks=64)
        request = driver.submit(IDS[:9], max_tokens=3)
        driver.run()
        assert len(driver.output(request).tokens) == 3, qtype


def refused(tiny, tmp_path, load, match: str, *, change=None, metadata=None) -> None:
    path = rewritten(tiny, tmp_path / "changed.gguf", change=change, metadata=metadata)
    with pytest.raises(ModelFileError, match=match):
        load(path)


def test_an_unknown_tensor_is_named_and_refused(tiny, tmp_path, load) -> None:
    def add(tensors) -> None:
        tensors["blk.0.surprise.weight"] = torch.zeros(4)

    refused(tiny, tmp_path, load, "blk.0.surprise.weight", change=add)


def test_tensors_of_another_model_are_skipped_with_one_line(tiny, tmp_path, load, caplog) -> None:
    def add(tensors) -> None:
        tensors["v.blk.0.weight"] = torch.zeros(4)
        tensors["mm.0.weight"] = torch.zeros(4)

    with caplog.at_level("INFO"):
        load(rewritten(tiny, tmp_path / "vision.gguf", change=add))
    assert [r for r in caplog.records if "2 tensors of another model" in r.getMessage()]


def test_a_missing_or_misshapen_tensor_is_named(tiny, tmp_path, load) -> None:
    refused(
        tiny,
        tmp_path,
        load,
        r"blk\.1\.ffn_up\.weight",
        change=lambda t: t.pop("blk.1.ffn_up.weight"),
    )

    def reshape(tensors) -> None:
        tensors["blk.1.attn_k.weight"] = torch.zeros(8, 64)

    refused(tiny, tmp_path, load, r"blk\.1\.attn_k\.weight.*\[8, 64\]", change=reshape)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen3.expert_count", 8),
        ("qwen3.attention.sliding_window", 128),
        ("qwen3.rope.scaling.type", "longrope"),
        ("qwen3.attention.value_length", 16),
        ("qwen3.attention.head_count_kv", 3),
        ("qwen3.logit_scale", 2.0),
    ],
)
def test_what_this_code_does_not_do_is_refused_by_key(key, value, tiny, tmp_path, load) -> None:
    refused(tiny, tmp_path, load, key.replace(".", r"\."), metadata={key: value})


def test_per_layer_keys_may_be_arrays(tiny, tmp_path, load, all_logits) -> None:
    path = rewritten(
        tiny, tmp_path / "array.gguf", metadata={"qwen3.attention.head_count_kv": [1, 1]}
    )
    assert torch.equal(all_logits(load(path), IDS), all_logits(load(tiny), IDS))


def test_a_context_beyond_the_model_s_is_refused(tiny, load) -> None:
    with pytest.raises(ConfigError, match="--max-ctx 99999 is more than the model's 256"):
        load(tiny, max_context=99_999)
