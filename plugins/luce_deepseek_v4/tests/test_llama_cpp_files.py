"""Files that llama.cpp wrote give its logits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from luce_core.testing.driver import Driver


def test_a_file_that_llama_cpp_wrote_gives_its_logits(load, watch) -> None:
    """DEEPSEEK4_LLAMA_CPP_FILES names files of `test-llama-archs -a '^deepseek4' -o DIR`, with `:`
    between them, without their `.scale` and `.input_scale` tensors, which llama.cpp's graph of this
    architecture does not read. Beside each, as FILE.bin, lie llama.cpp's logits [T, vocab] float32
    of the tokens (7 i + 3) mod vocab."""
    paths = os.environ.get("DEEPSEEK4_LLAMA_CPP_FILES")
    if not paths:
        pytest.skip("DEEPSEEK4_LLAMA_CPP_FILES names no file")
    for path in map(Path, paths.split(":")):
        engine = load(path)
        vocab = engine.capabilities.vocab_size
        raw = Path(f"{path}.bin").read_bytes()
        expected = torch.frombuffer(bytearray(raw), dtype=torch.float32).view(-1, vocab)
        ids = [(7 * i + 3) % vocab for i in range(len(expected))]
        watched, driver = watch(engine), Driver(engine, pool_blocks=32)
        request = driver.submit(ids, max_tokens=1)
        driver.run()
        ours = torch.stack([watched.logits[request.id][n] for n in range(len(ids))])
        error = float((ours - expected).abs().max())
        print(f"{path.name}: logits of deviation {expected.std():.2g} differ by {error:.1e}")
        assert error < 1e-3
        assert torch.equal(ours.argmax(-1), expected.argmax(-1))
