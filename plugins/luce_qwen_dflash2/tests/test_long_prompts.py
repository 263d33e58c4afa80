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
from luce_core.testing.leak_check import leak_check
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
    texts = (prompt(20), prompt(300))
    expected = []
    for text in texts:
        alone = Driver(engine, pool_blocks=64, policy=CHUNKED)
        expected.append(alone.submit(text, max_tokens=8))
        alone.run()

    driver = Driver(engine, pool_blocks=64, policy=CHUNKED)
    requests = [driver.submit(texts[0], max_tokens=8)]
    driver.step()
    requests.append(driver.submit(texts[1], max_tokens=8))
    driver.step()
    driver.step()
    fail_at = calls + 2  # the second of three DeltaNet layers, in the third chunk
    driver.step()
    for request in requests:
        assert driver.output(request).finish is FinishReason.ERROR
    leak_check(driver.scheduler, engine=engine)
    again = [driver.submit(text, max_tokens=8) for text in texts]
    driver.run()
    assert [r.generated for r in again] == [r.generated for r in expected]


_MEASURE = """
import sys
from pathlib import Path
import luce_kernels_cpu
import torch
torch.set_num_threads(1)
from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.sampling.sampler import Sampler
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.driver import Driver
from luce_core.weights.gguf_file import GgufFile
from luce_qwen_dflash2.engine import QwenEngine
from luce_qwen_dflash2.ops.target_ops import TARGET_OPS
chunk = int(sys.argv[2])
registry = core_registry()
for spec in TARGET_OPS:
    registry.register_op(spec)
luce_kernels_cpu.luce_register_kernels(registry.register_kernel)
luce_kernels_cpu.luce_register_recorders(registry.register_recorder)
context = LoadContext(gguf=GgufFile.open(sys.argv[1]), device=Device("cpu"),
    ops=registry.binder(Device("cpu"), torch.float32, threads=1), limits=EngineLimits(max_slots=2),
    sampler=lambda vocab: Sampler(2, vocab), settings=None, progress=lambda *args: None)
engine = QwenEngine.load(context)
engine.allocate(1100)
policy = SchedulerPolicy(admission_coalesce_ms=0, prefill_chunk=chunk, prefill_tokens=chunk,
    long_prefill_tokens=chunk, idle_prefill_tokens=chunk)
driver = Driver(engine, pool_blocks=1100, policy=policy)
def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])
for length in (16, 1024, 8192):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("RssAnon")
    files = resident("RssFile")
    driver.submit([n % 250 for n in range(length)], max_tokens=2)
    driver.run()
    print(resident("VmHWM") - files - before)
"""


@pytest.mark.usefixtures("native_ops")
def test_work_space_does_not_grow_with_the_prompt(tiny) -> None:
    """Anonymous memory at the peak of a prompt of 8192 tokens, behind one of 1024, beyond what was
    there before. The cache's pages are touched when it is made; one activation of all rows at the
    model's width would be 2 MiB, and that much is seen where half of the prompt is one chunk."""

    def more(chunk: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(tiny), str(chunk)],
            capture_output=True,
            text=True,
            check=True,
        )
        print(f"KiB more for 16, 1024, 8192 tokens, {chunk} at once: {done.stdout.split()}")
        return int(done.stdout.split()[-1])

    assert more(256) < 1024
    assert more(4096) > 2048


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
