"""What a step computes, what a file may hold, and what memory it asks for."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from luce_qwen_dflash2.config import read_config
from luce_qwen_dflash2.draft.backlog import Backlog
from luce_qwen_dflash2.limits import engine_capabilities, scratch_bytes
from luce_qwen_dflash2.linear import LinearWeights
from luce_qwen_dflash2.model import Model
from luce_qwen_dflash2.room import Room
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid

from luce_core.batch.build import BatchBuffers, pack
from luce_core.ops.bound import BoundOp
from luce_core.ops.cases import CaseMaker
from luce_core.ops.record import record
from luce_core.plan import PrefillSlice, StepPlan
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.driver import Driver

IDS = [(7 * index + 3) % 250 for index in range(50)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SyntheticHybrid())


def generated(engine, *, count: int = 6) -> list[int]:
    driver = Driver(engine, pool_blocks=64)
    request = driver.submit(IDS, max_tokens=count)
    driver.run()
    return list(request.generated)


def test_a_mixed_step_calls_each_projection_once_and_the_head_on_few_rows(
    tiny, load, monkeypatch
) -> None:
    policy = SchedulerPolicy(admission_coalesce_ms=0, prefill_chunk=9)
    engine = load(tiny)
    driver = Driver(engine, pool_blocks=64, policy=policy)
    for _ in range(2):
        driver.submit(IDS[:9], max_tokens=20)
    driver.step()
    for length in (9, 40, 40):  # one prompt ends in this step, two go on
        driver.submit(IDS[:length], max_tokens=20)
    calls: Counter[int] = Counter()
    rows: dict[int, int] = {}
    call = BoundOp.__call__

    def counted(op: BoundOp, *args):
        if op.spec.name == "quant_matmul":
            calls[id(op)] += 1
            rows[id(op)] = args[0].shape[0]
        return call(op, *args)

    monkeypatch.setattr(BoundOp, "__call__", counted)
    driver.step()
    # 3 DeltaNet layers of 5 products, 1 attention layer of 5, 4 MLPs of 3, and the head
    assert len(calls) == 3 * 5 + 5 + 4 * 3 + 1
    assert set(calls.values()) == {1}
    assert rows.pop(id(engine._model.head)) == 3
    assert set(rows.values()) == {2 + 3 * 9}


def test_query_and_gate_rows_are_taken_apart_exactly_in_any_type() -> None:
    maker = CaseMaker("cpu", torch.float32)
    for qtype in ("F32", "BF16", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS"):
        weight = maker.weight(2 * 3 * 8, 512, qtype)
        query, gate = LinearWeights(weight, None, maker.normal32(48)).split_heads(heads=3, dim=8)
        by_head = weight.dequantize().view(3, 16, 512)
        assert torch.equal(query.weight.dequantize(), by_head[:, :8].reshape(24, 512))
        assert torch.equal(gate.weight.dequantize(), by_head[:, 8:].reshape(24, 512))


WIDE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "head_dim": 64,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 128,  # rows of ssm_out: 768 values, whole blocks of 256
}


@pytest.mark.parametrize("matrices", ["Q8_0", "Q4_K", "IQ4_XS"])
@pytest.mark.parametrize("small", ["F32", "BF16", "Q8_0"])
def test_value_heads_are_right_in_any_quant_type(
    matrices, small, tiny_model, write_model, tmp_path, load, watch
) -> None:
    """Blocks go through as they are; transformers computes from the values they stand for."""
    maker = CaseMaker("cpu", torch.float32, seed=3)

    def made(qtype: str):
        return lambda n, k: maker.weight(n, k, qtype)

    rope = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    }
    oracle = tiny_model(**WIDE, rope_parameters=rope)
    roles = {name: made(matrices) for name in ("ssm_out", "attn_qkv", "attn_gate", "attn_q")}
    roles |= {name: made(small) for name in ("ssm_alpha", "ssm_beta")}
    engine = load(write_model(tmp_path / "quant.gguf", oracle, quantised=roles))
    watched, driver = watch(engine), Driver(engine, pool_blocks=64)
    request = driver.submit(IDS[:20], max_tokens=8)
    driver.run()
    error = watched.worst_error(request, oracle)
    print(f"{matrices}, {small}: {error:.1e}")
    assert error < 1e-4


def test_every_cache_type_stays_close_to_f32(tiny, load, watch) -> None:
    def logits(cache: str) -> torch.Tensor:
        engine = load(tiny, cache=cache)
        watched, driver = watch(engine), Driver(engine, pool_blocks=64)
        request = driver.submit(IDS, max_tokens=1)
        driver.run()
        return watched.logits[request.id][len(IDS) - 1]

    exact = logits("f32")
    for cache, most in (("f16", 0.002), ("bf16", 0.02), ("q8_0", 0.03)):
        error = (logits(cache) - exact).square().mean().sqrt() / exact.std()
        assert 0 < error < most, cache


def test_a_tied_head_reads_the_embeddings(tiny, tmp_path, load, rewritten) -> None:
    def tie(tensors) -> None:
        del tensors["output.weight"]

    def repeat(tensors) -> None:
        tensors["output.weight"] = tensors["token_embd.weight"]

    tied = load(rewritten(tiny, tmp_path / "tied.gguf", change=tie))
    same = load(rewritten(tiny, tmp_path / "same.gguf", change=repeat))
    assert generated(tied) == generated(same)


def test_recurrent_layers_may_be_listed(tiny, tmp_path, load, rewritten) -> None:
    listed = {
        "qwen35.attention.recurrent_layers": [True, True, True, False],
        "qwen35.full_attention_interval": None,
    }
    assert generated(load(rewritten(tiny, tmp_path / "l.gguf", metadata=listed))) == generated(
        load(tiny)
    )


def test_layers_that_predict_further_tokens_are_skipped_with_a_line(
    tiny, tmp_path, load, caplog, rewritten
) -> None:
    def add(tensors) -> None:
        for name in ("nextn.eh_proj", "nextn.enorm", "attn_q", "attn_norm"):
            tensors[f"blk.4.{name}.weight"] = torch.zeros(8)

    path = rewritten(
        tiny,
        tmp_path / "mtp.gguf",
        change=add,
        metadata={"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1},
    )
    with caplog.at_level("INFO"):
        engine = load(path)
    assert [r for r in caplog.records if "4 tensors of a layer that predicts" in r.getMessage()]
    assert generated(engine) == generated(load(tiny))


def test_features_are_the_residual_streams_behind_their_layers(tiny, context, load) -> None:
    """What a draft reads: of layers 0, 2 and 3, for every row, whatever the head's rows are."""
    loading = context(tiny, slots=2)
    config = read_config(loading.gguf.metadata)
    model = Model(loading, config, features=(0, 2, 3))
    one = Model(context(tiny, slots=2), config, features=(3,))
    room = Room(blocks=4, slots=2, max_draft=0, device=torch.device("cpu"))
    buffers = BatchBuffers(max_rows=64, max_slots=2, max_blocks=4, null_block=4, null_slot=2)
    table = SimpleNamespace(block_size=16, blocks=[2, 0, 3])
    slots = {0: SimpleNamespace(table=table)}
    batch = pack(StepPlan(1, (PrefillSlice(0, 0, tuple(IDS[:40]), True),)), slots, buffers)
    backlogs = [
        Backlog(64, n * 64, max_rows=64, dtype=torch.float32, device=room.device) for n in (3, 1)
    ]
    for each, backlog in zip((model, one), backlogs, strict=True):
        backlog.open(40)
        each.allocate(room, backlog)
    logits, greedy = model.forward(batch)
    assert greedy.tolist() == logits.argmax(1).tolist()
    one.forward(batch)
    features, last = (backlog.rows[:40] for backlog in backlogs)
    assert torch.equal(features[:, 128:], last)
    assert torch.equal(model.head(model._norm(last[-1:])), logits)

    seen: list[torch.Tensor] = []
    for index, layer in enumerate(model._layers):
        model._layers[index] = lambda x, batch, run=layer: seen.append(run(x, batch)) or seen[-1]
    model.allocate(room, backlogs[0])
    model.forward(batch)
    assert torch.equal(features, torch.cat((seen[0], seen[2], seen[3]), 1))
    assert torch.equal(model.embed(batch.token_ids), model.embed(torch.tensor(IDS[:40])))


def test_scales_and_biases_of_a_file_count(tiny, tmp_path, load, watch, rewritten) -> None:
    """(x W^T) scale + bias, the query's and the gate's parts of a bias by head; a copy in which
    all of it is part of the weights gives the same logits."""
    maker = CaseMaker("cpu", torch.float32, seed=8)
    names = ("attn_q", "attn_k", "attn_output", "attn_qkv", "ssm_alpha", "ssm_out", "ffn_up")

    def matrices(tensors):
        return [n for n in tensors if n.startswith("blk.") and n.split(".")[2] in names]

    scales: dict[str, torch.Tensor] = {}

    def beside(tensors) -> None:
        for name in matrices(tensors):
            stem = name.removesuffix(".weight")
            scales[name] = 1 + 0.5 * maker.normal32(1)
            tensors[f"{stem}.scale"] = scales[name]
            tensors[f"{stem}.input_scale"] = maker.normal32(1)

    def within(tensors) -> None:
        for name in matrices(tensors):
            tensors[name] = tensors[name].dequantize() * scales[name]

    logits = []
    for change in (beside, within):
        engine = load(rewritten(tiny, tmp_path / f"{change.__name__}.gguf", change=change))
        watched, driver = watch(engine), Driver(engine, pool_blocks=64)
        request = driver.submit(IDS, max_tokens=1)
        driver.run()
        logits.append(watched.logits[request.id][len(IDS) - 1])
    assert (logits[0] - logits[1]).abs().max() < 1e-5


def test_fused_experts_and_their_scales_count(tmp_path, load, watch, rewritten) -> None:
    maker = CaseMaker("cpu", torch.float32, seed=9)
    model = SyntheticHybrid(experts=6, layers=2, interval=2, ff=64)
    base = write_hybrid(tmp_path / "base.gguf", model)
    scales = {name: 1 + 0.5 * maker.normal32(6) for name in ("blk.0", "blk.1")}

    def beside(tensors) -> None:
        for block, scale in scales.items():
            tensors[f"{block}.ffn_down_exps.scale"] = scale
            halves = [tensors.pop(f"{block}.ffn_{part}_exps.weight") for part in ("gate", "up")]
            both = torch.cat([half.dequantize() for half in halves], 1)
            tensors[f"{block}.ffn_gate_up_exps.weight"] = both

    def within(tensors) -> None:
        for block, scale in scales.items():
            name = f"{block}.ffn_down_exps.weight"
            tensors[name] = tensors[name].dequantize() * scale[:, None, None]

    logits = []
    for change in (beside, within):
        engine = load(rewritten(base, tmp_path / f"{change.__name__}.gguf", change=change))
        watched, driver = watch(engine), Driver(engine, pool_blocks=64)
        request = driver.submit(IDS, max_tokens=1)
        driver.run()
        logits.append(watched.logits[request.id][len(IDS) - 1])
    assert (logits[0] - logits[1]).abs().max() < 1e-5


def test_a_file_that_llama_cpp_wrote_gives_its_logits(load, watch) -> None:
    """QWEN35_LLAMA_CPP_FILES names files of `test-llama-archs -a '^qwen35' -o DIR`, with `:`
    between them. Beside each, as FILE.bin, lie llama.cpp's logits [T, vocab] float32 of the tokens
    (7 i + 3) mod vocab."""
    paths = os.environ.get("QWEN35_LLAMA_CPP_FILES")
    if not paths:
        pytest.skip("QWEN35_LLAMA_CPP_FILES names no file")
    for path in map(Path, paths.split(":")):
        engine = load(path)
        vocab = engine.capabilities.vocab_size
        raw = Path(f"{path}.bin").read_bytes()
        expected = torch.frombuffer(bytearray(raw), dtype=torch.float32).view(-1, vocab)
        ids = [(7 * i + 3) % vocab for i in range(len(expected))]
        watched, driver = watch(engine), Driver(engine, pool_blocks=64)
        requests = [driver.submit(ids[: n + 1], max_tokens=1) for n in range(len(ids))]
        driver.run()
        ours = torch.stack([watched.logits[r.id][n] for n, r in enumerate(requests)])
        error = float((ours - expected).abs().max())
        print(f"{path.name}: logits of deviation {expected.std():.2g} differ by {error:.1e}")
        assert error < 1e-3


def test_memory_need_counts_state_and_logs_of_a_slot(tiny, load) -> None:
    plain, drafting = load(tiny), load(tiny, max_draft=7)
    for engine, rows in ((plain, 1), (drafting, 8)):
        caches = [mixer.cache for mixer in engine._model._recurrent]
        held = sum(
            getattr(cache, name).nbytes for cache in caches for name in type(cache).__slots__
        )
        assert held == engine.memory_need.bytes_per_slot * (engine.capabilities.max_slots + 1)
        assert caches[0].conv_log.shape[1] == rows
    assert plain.memory_need.bytes_per_token == 2 * 2 * 32 * 4
    assert plain.memory_need.scratch > 0


@pytest.mark.parametrize("features", [(), (3,), (0, 3), (1, 3, 5, 6, 7)])
@pytest.mark.parametrize(
    "model",
    [
        SyntheticHybrid(layers=8, width=256, ff=870, state_dim=26, key_heads=4, value_heads=12),
        SyntheticHybrid(layers=8, width=256, ff=256, heads=24, kv_heads=2),
        SyntheticHybrid(layers=8, width=256, ff=96, experts=8, top_k=3),
    ],
    ids=["27B's proportions", "wide attention", "experts"],
)
def test_scratch_holds_what_a_recorded_pass_takes(model, features, tmp_path, context) -> None:
    path = write_hybrid(tmp_path / "model.gguf", model)
    loading = context(path)
    config = read_config(loading.gguf.metadata)
    forward = Model(loading, config, features=features).forward
    capabilities = engine_capabilities(
        config,
        slots=4,
        max_context=None,
        vocab_size=model.vocab,
        max_draft=7,
        has_features=bool(features),
    )
    arena = record(
        forward,
        max_rows=capabilities.max_step_rows,
        max_logits=4 * 8,
        max_segments=4,
        max_blocks=32,
    ).arena
    scratch = scratch_bytes(config, capabilities)
    print(f"{sum(arena) / 2**20:.1f} MiB of {scratch / 2**20:.1f}")
    assert sum(arena) <= scratch < 1.6 * sum(arena)


def test_the_real_model_has_the_published_state_sizes(load) -> None:
    """144 MiB of recurrent state and 5.6 MiB of convolution history (Qwen3.8-27B)."""
    from luce_qwen_dflash2.state import bytes_per_slot
    from luce_qwen_dflash2.synthetic import QWEN_27B, hybrid_metadata

    from luce_core.weights.typed_metadata import TypedMetadata

    config = read_config(TypedMetadata("27B", hybrid_metadata(QWEN_27B)))
    assert config.recurrent.count(True) == 48
    assert config.delta.channels == 10240
    assert config.rope["rotary_dim"] == 64
    state = 4 * (48 * 128 * 128 + 3 * 10240)
    logs = 4 * (10240 + 16 * 128 + 48 * 128 + 48)
    assert bytes_per_slot(config.delta, 0) == state + logs
    assert round(48 * state / 2**20, 1) == 149.6


def test_closing_gives_the_state_back(tiny, load) -> None:
    engine = load(tiny)
    engine.close()
    engine.close()
    assert all(mixer.cache.delta.shape[0] == 1 for mixer in engine._model._recurrent)


def test_widths_of_experts_may_follow_from_the_dense_one(tmp_path, load, rewritten) -> None:
    path = write_hybrid(tmp_path / "moe.gguf", SyntheticHybrid(experts=6, top_k=1))
    older = {
        "qwen35moe.expert_feed_forward_length": None,
        "qwen35moe.expert_shared_feed_forward_length": None,
    }
    assert generated(load(rewritten(path, tmp_path / "older.gguf", metadata=older))) == generated(
        load(path)
    )
