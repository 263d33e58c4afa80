"""Long prompts: bounded work space, no advanced state after a fault, and exact recurrences."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from luce_qwen_dflash2.ops import gated_delta
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid

from luce_core.request import FinishReason
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.driver import Driver
from luce_core.weights.gguf_file import GgufFile

CHUNKED = SchedulerPolicy(
    admission_coalesce_ms=0,
    prefill_chunk=64,
    prefill_tokens=64,
    long_prefill_tokens=64,
    idle_prefill_tokens=64,
)


def prompt(length: int) -> list[int]:
    return random.Random(length).choices(range(250), k=length)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    model = SyntheticHybrid(context=16_384, seed=2)
    return write_hybrid(tmp_path_factory.mktemp("tiny") / "tiny.gguf", model)


def test_a_fault_in_a_later_chunk_leaves_nothing_behind(tiny, load, ops_registry) -> None:
    calls, fail_at = 0, 0

    def delta(*args, **facts) -> None:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise RuntimeError("out of memory")
        gated_delta.gated_delta(*args, **facts)

    registry = ops_registry()
    registry.register_kernel(
        "gated_delta", delta, device="cpu", dtypes=(torch.float32,), provider="fragile"
    )
    engine = load(tiny, registry=registry)
    alone = Driver(engine, pool_blocks=64, policy=CHUNKED)
    expected = alone.submit(prompt(300), max_tokens=8)
    alone.run()

    driver = Driver(engine, pool_blocks=64, policy=CHUNKED)
    bystander = driver.submit(prompt(20), max_tokens=40)
    driver.step()
    cache = engine._model._recurrent[0].cache
    failing = driver.submit(prompt(300), max_tokens=8)
    driver.step()
    driver.step()
    fail_at = calls + 2  # the second of three DeltaNet layers, in the third chunk
    before = cache.delta[5].clone()
    driver.step()
    for request in (bystander, failing):
        assert driver.output(request).finish is FinishReason.ERROR
    assert torch.equal(cache.delta[5], before)
    again = driver.submit(prompt(300), max_tokens=8)
    driver.run()
    assert again.generated == expected.generated


_MEASURE = """
import resource, sys
import torch
torch.set_num_threads(1)
from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.sampling.sampler import Sampler
from luce_core.testing.driver import Driver
from luce_core.weights.gguf_file import GgufFile
from luce_qwen_dflash2.engine import QwenEngine
from luce_qwen_dflash2.ops.target_ops import TARGET_OPS
registry = core_registry()
for spec in TARGET_OPS:
    registry.register_op(spec)
context = LoadContext(gguf=GgufFile.open(sys.argv[1]), device=Device("cpu"),
    ops=registry.binder(Device("cpu"), torch.float32), limits=EngineLimits(max_slots=2),
    sampler=lambda vocab: Sampler(2, vocab), settings=None, progress=lambda *args: None)
engine = QwenEngine.load(context)
engine.allocate(520)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
driver = Driver(engine, pool_blocks=520)
for length in (1024, 8192):
    driver.submit([n % 250 for n in range(length)], max_tokens=2)
    driver.run()
    print(peak())
"""


@pytest.mark.slow
def test_work_space_does_not_grow_with_the_prompt(tiny) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tiny)], capture_output=True, text=True, check=True
    )
    short, long = map(int, done.stdout.split())
    kv_growth = 7168 * 2 * 2 * 32 * 2 / 1024
    print(f"peak {short} KiB for 1024 tokens, {long} KiB for 8192, KV grew {kv_growth:.0f} KiB")
    assert long - short <= kv_growth + 0.2 * short


def exact_logits(tensors: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of the model in float64, by its formulas, one token after the other."""
    sizes = SyntheticHybrid()
    heads, keys, dim = sizes.value_heads, sizes.key_heads, sizes.state_dim
    w = {name: value.double() for name, value in tensors.items()}

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight

    def unit(x: torch.Tensor) -> torch.Tensor:
        return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()

    def delta_layer(u: torch.Tensor, p: str) -> torch.Tensor:
        x = torch.nn.functional.pad(u @ w[f"{p}.attn_qkv.weight"].t(), (0, 0, 3, 0))
        taps = w[f"{p}.ssm_conv1d.weight"].t()
        x = sum(taps[tap] * x[tap : tap + len(u)] for tap in range(4))
        q, k, v = torch.nn.functional.silu(x).split([keys * dim, keys * dim, heads * dim], -1)
        q, k = (unit(t.view(-1, keys, dim)).repeat(1, heads // keys, 1) for t in (q, k))
        q, v = q * dim**-0.5, v.view(-1, heads, dim)
        beta = (u @ w[f"{p}.ssm_beta.weight"].t()).sigmoid()
        step = u @ w[f"{p}.ssm_alpha.weight"].t() + w[f"{p}.ssm_dt.bias"]
        decay = (w[f"{p}.ssm_a"] * torch.nn.functional.softplus(step)).exp()
        state, out = torch.zeros(heads, dim, dim, dtype=torch.float64), []
        for t in range(len(u)):
            state = state * decay[t, :, None, None]
            wrote = beta[t, :, None] * (v[t] - torch.einsum("hkv,hk->hv", state, k[t]))
            state = state + torch.einsum("hk,hv->hkv", k[t], wrote)
            out.append(torch.einsum("hkv,hk->hv", state, q[t]))
        gate = torch.nn.functional.silu(u @ w[f"{p}.attn_gate.weight"].t()).view(-1, heads, dim)
        mixed = norm(torch.stack(out), w[f"{p}.ssm_norm.weight"]) * gate
        return mixed.flatten(1) @ w[f"{p}.ssm_out.weight"].t()

    def attention_layer(u: torch.Tensor, p: str) -> torch.Tensor:
        both = (u @ w[f"{p}.attn_q.weight"].t()).view(-1, 4, 64)
        q, gate = both.split(32, -1)
        k = (u @ w[f"{p}.attn_k.weight"].t()).view(-1, 2, 32)
        v = (u @ w[f"{p}.attn_v.weight"].t()).view(-1, 2, 32)
        q, k = norm(q, w[f"{p}.attn_q_norm.weight"]), norm(k, w[f"{p}.attn_k_norm.weight"])
        rate = 1e7 ** (-torch.arange(4, dtype=torch.float64) / 4)
        angle = torch.arange(len(u), dtype=torch.float64)[:, None, None] * rate
        q, k = (
            torch.cat(
                (
                    t[..., :4] * angle.cos() - t[..., 4:8] * angle.sin(),
                    t[..., 4:8] * angle.cos() + t[..., :4] * angle.sin(),
                    t[..., 8:],
                ),
                -1,
            )
            for t in (q, k)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            is_causal=True,
            enable_gqa=True,
        )[0].transpose(0, 1)
        return (attended * gate.sigmoid()).flatten(1) @ w[f"{p}.attn_output.weight"].t()

    x = w["token_embd.weight"][ids]
    for layer in range(4):
        p = f"blk.{layer}"
        mix = attention_layer if layer == 3 else delta_layer
        x = x + mix(norm(x, w[f"{p}.attn_norm.weight"]), p)
        u = norm(x, w[f"{p}.post_attention_norm.weight"])
        gated = torch.nn.functional.silu(u @ w[f"{p}.ffn_gate.weight"].t())
        x = x + (gated * (u @ w[f"{p}.ffn_up.weight"].t())) @ w[f"{p}.ffn_down.weight"].t()
    return norm(x, w["output_norm.weight"]) @ w["output.weight"].t()


@pytest.mark.parametrize("length", [200, pytest.param(8192, marks=pytest.mark.slow)])
def test_logits_and_state_of_a_long_prompt_are_those_of_float64(length, tiny, load, watch) -> None:
    with GgufFile.open(tiny) as gguf:
        tensors = {name: tensor.dequantize() for name, tensor in gguf.tensors.items()}
    engine = load(tiny, blocks=560)
    watched, driver = watch(engine), Driver(engine, pool_blocks=560)
    request = driver.submit(prompt(length), max_tokens=64)
    driver.run()
    seen = watched.logits[request.id]
    ours = torch.stack([seen[row] for row in sorted(seen)]).double()
    expected = exact_logits(tensors, [*request.prompt, *request.generated])[length - 1 : -1]
    error = (ours - expected).abs().max()
    same = (ours.argmax(-1) == expected.argmax(-1)).double().mean()
    print(f"{length} tokens: logits differ by {error:.1e}, same favourite {same:.4f}")
    assert error < 1e-3
    assert same >= 0.999
    for mixer in engine._model._recurrent:
        assert mixer.cache.delta.isfinite().all()
        assert mixer.cache.delta.norm() < 1e3
