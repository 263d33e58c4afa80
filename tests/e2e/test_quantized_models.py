"""A file that `luce quantize` has written is served, and answers as its dequantised weights do."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce_core.cli import main
from luce_core.load import load_model, open_model
from luce_core.plugin_manager import build_plugin_manager
from luce_core.request import SamplingParams
from luce_core.settings import parse_settings
from luce_core.testing.driver import Output, run_alone
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

ROCMFP = ("ROCMFP2", "ROCMFP3", "ROCMFP4", "ROCMFP4_FAST", "ROCMFP6", "ROCMFP8")
PROMPT = [(7 * index + 3) % 250 for index in range(20)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = SyntheticModel(qtype="F16", width=256, ff=512, heads=4, tied=False, seed=11)
    return write_synthetic(tmp_path_factory.mktemp("model") / "f16.gguf", shape)


def answer_of(path: Path, *words: str) -> Output:
    """Twenty-four tokens of an engine that is loaded as `luce serve` loads it, with the likeliest
    ones for each place."""
    plugins = build_plugin_manager()
    common = ("--threads", "1", "--kv-pool-tokens", "1024", "--max-concurrency", "1")
    settings = parse_settings([str(path), *common, *words])
    loaded = load_model(open_model(settings, plugins), plugins, lambda done, total, what: None)
    params = SamplingParams(temperature=0, seed=0, logprobs=20)
    output = run_alone(
        loaded.engine, PROMPT, max_tokens=24, pool_blocks=loaded.pool.blocks, params=params
    )
    loaded.engine.close()
    assert len(output.tokens) == 24
    return output


def apart(one: Output, other: Output) -> float:
    """The largest difference of log-probabilities of the first token's candidates."""
    here, there = (dict(output.logprobs[0].top) for output in (one, other))
    shared = here.keys() & there.keys()
    assert len(shared) >= 15
    return max(abs(here[token] - there[token]) for token in shared)


def quantized(source: Path, target: Path, name: str, *words: str) -> Path:
    whole = ("--output-type", name, "--embedding-type", name)
    assert main(["quantize", str(source), str(target), "--type", name, *whole, *words]) == 0
    return target


@pytest.mark.parametrize("name", [*ROCMFP, "MXFP4", "Q4_0"])
def test_tokens_are_those_of_the_dequantised_weights(model: Path, tmp_path: Path, name: str):
    path = quantized(model, tmp_path / "small.gguf", name)
    with GgufFile.open(path) as file:
        kinds = {each.qtype.name for each in file.tensors.values() if len(each.shape) > 1}
        values = {key: tensor.dequantize() for key, tensor in file.tensors.items()}
        write_gguf(tmp_path / "f32.gguf", file.architecture, file.metadata.values, values)
    assert kinds == {name}
    expected = answer_of(tmp_path / "f32.gguf", "--op", "reference")
    found = answer_of(path, "--op", "reference")
    assert found.tokens == expected.tokens
    assert apart(found, expected) < 1e-4
    # Native kernels, where they are installed, round activations to 8 bits.
    native = apart(answer_of(path), expected)
    print(f"{name}: native {native:.4f}")
    assert native < 0.15


def test_a_real_model_still_knows_the_capital(smollm2_path, tmp_path, serve):
    path = quantized(smollm2_path, tmp_path / "fp8.gguf", "ROCMFP8", "--allow-requantize")
    server = serve(path, "--max-ctx", "512", "--max-concurrency", "1")
    question = [{"role": "user", "content": "Name the capital of France."}]
    body = {"messages": question, "temperature": 0, "max_tokens": 24}
    reply = server.post("/v1/chat/completions", body)
    assert "Paris" in reply["choices"][0]["message"]["content"]


def test_a_scale_that_is_no_number_ends_the_start_with_its_place(model, tmp_path, serve):
    path = quantized(model, tmp_path / "fp4.gguf", "ROCMFP4")
    with GgufFile.open(path) as file:
        mapped = file.tensors["blk.1.ffn_down.weight"].mapped
    assert mapped is not None
    raw = bytearray(path.read_bytes())
    raw[mapped.start + 18 * 5 + 17] = 0x7F
    path.write_bytes(raw)
    server = serve(path, ready=False)
    assert server.wait_ended() == 1
    assert "'blk.1.ffn_down.weight': byte 17 of block 5 (row 0) is 0x7f" in server.log
    assert server.log.count("\n") == 1
