"""Files as they are found: rounded mixing matrices, blocks that predict, sinks of zero."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from luce_core.testing.driver import Driver

IDS = random.Random(32).choices(range(320), k=150)


@pytest.fixture(scope="module")
def tiny(tiny_model, write_model, tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny_model(seed=32))


@pytest.fixture
def logits_of(load, watch, rewritten, tmp_path, tiny):
    def run(*, change=None, metadata=None, ids=IDS, source=None, **settings: object) -> Tensor:
        path = rewritten(
            source or tiny, tmp_path / "changed.gguf", change=change, metadata=metadata
        )
        engine = load(path, **settings)
        watched, driver = watch(engine), Driver(engine, pool_blocks=32)
        request = driver.submit(ids, max_tokens=1)
        driver.run()
        seen = watched.logits[request.id]
        return torch.stack([seen[position] for position in sorted(seen)])

    return run


def mixing(tensors) -> list[str]:
    return [name for name in tensors if "hc_" in name]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixing_is_float32_whatever_the_file_holds(dtype, logits_of, caplog) -> None:
    """A file's rounding cannot be undone, but nothing is rounded further, and it is said."""

    def rounded(tensors) -> None:
        for name in mixing(tensors):
            tensors[name] = tensors[name].dequantize().to(dtype).float()

    def stored(tensors) -> None:
        for name in mixing(tensors):
            tensors[name] = tensors[name].dequantize().to(dtype)

    expected = logits_of(change=rounded)
    assert not caplog.records
    assert (logits_of(change=stored) - expected).abs().max() < 1e-6
    (note,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "9 matrices of hyper-connections are stored below F32" in note
    assert "blk.0.hc_attn_fn.weight" in note


def test_predicting_blocks_that_have_no_tensors_are_only_a_number(logits_of) -> None:
    """`block_count` is the trunk's then, as files written without them state it."""
    stated = {
        "deepseek4.nextn_predict_layers": 1,
        "deepseek4.attention.compress_ratios": [0, 4, 128, 4, 0],
    }
    assert torch.equal(logits_of(metadata=stated), logits_of())


def test_predicting_blocks_are_skipped_with_one_line(logits_of, caplog) -> None:
    def add(tensors) -> None:
        tensors["blk.4.nextn.eh_proj.weight"] = torch.zeros(128, 256)
        tensors["blk.4.attn_norm.weight"] = torch.zeros(128)

    stated = {
        "deepseek4.nextn_predict_layers": 1,
        "deepseek4.block_count": 5,
        "deepseek4.attention.compress_ratios": [0, 4, 128, 4, 0],
    }
    with caplog.at_level("INFO"):
        assert torch.equal(logits_of(change=add, metadata=stated), logits_of())
    (note,) = [r.getMessage() for r in caplog.records if "skipped" in r.getMessage()]
    assert "2 tensors of a layer that predicts further tokens" in note


def test_a_sink_of_zero_takes_its_share(logits_of) -> None:
    """exp(0) in the denominator; without sinks, or with sinks of minus infinity, there is none."""

    def all_sinks(value: float):
        def change(tensors) -> None:
            for name in [name for name in tensors if name.endswith("attn_sinks.weight")]:
                tensors[name] = torch.full((4,), value)

        return change

    zero, none = logits_of(change=all_sinks(0.0)), logits_of(change=all_sinks(-1e30))
    assert (zero - none).abs().max() > 0.1


def test_the_output_matrix_may_have_an_axis_for_its_groups(logits_of) -> None:
    def change(tensors) -> None:
        for name in [name for name in tensors if name.endswith("attn_output_a.weight")]:
            tensors[name] = tensors[name].dequantize().view(2, 32, -1)

    assert torch.equal(logits_of(change=change), logits_of())


def test_the_bias_of_images_tokens_is_not_missed(logits_of) -> None:
    def change(tensors) -> None:
        for layer in range(4):
            tensors[f"blk.{layer}.exp_probs_b_vl.bias"] = torch.ones(8)

    assert torch.equal(logits_of(change=change), logits_of())


def test_the_shared_expert_has_the_routed_ones_clamp_unless_it_has_its_own(logits_of) -> None:
    same = {"deepseek4.swiglu_clamp_shexp": [10.0] * 4}
    tight = {"deepseek4.swiglu_clamp_shexp": 0.01}
    assert torch.equal(logits_of(metadata=same), logits_of())
    assert not torch.equal(logits_of(metadata=tight), logits_of())


def test_token_ids_reach_the_layers_that_route_by_them(logits_of) -> None:
    """With all embeddings equal, only the table tells tokens apart."""

    def change(tensors) -> None:
        table = tensors["token_embd.weight"].dequantize()
        tensors["token_embd.weight"] = table[:1].expand_as(table).contiguous()

    first, second = logits_of(change=change, ids=[3]), logits_of(change=change, ids=[4])
    assert not torch.equal(first, second)
