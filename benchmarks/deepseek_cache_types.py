"""What the types of DeepSeek V4's compressed cache cost in accuracy, position by position.

    python benchmarks/deepseek_cache_types.py [--positions 500] [--layers 6] [--seed 0]

A model with random weights and the real sizes of heads, entries and windows (narrow elsewhere) is
fed the same random tokens with each type; its logits are compared with those of float32 entries.
Through the references, so that nothing else is rounded.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from luce_deepseek_v4 import luce_register_ops
from luce_deepseek_v4.engine import DeepSeekEngine
from luce_deepseek_v4.ops.entry_cache import BLOCK_TOKENS, EntryLayout
from luce_deepseek_v4.room import CacheTypes
from luce_deepseek_v4.settings import DeepSeekSettings
from luce_deepseek_v4.synthetic import V4_FLASH, write_deepseek
from torch import Tensor

from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import CACHE_TYPES
from luce_core.sampling.sampler import Sampler
from luce_core.testing.driver import Driver
from luce_core.weights.gguf_file import GgufFile


def logits_of(path: Path, cache: str, ids: list[int]) -> Tensor:
    """Logits [T, vocab] of every position."""
    registry, device = core_registry(), Device("cpu")
    luce_register_ops(registry.register_op)
    limits = EngineLimits(max_slots=1, cache_type_k=cache, cache_type_v=cache)
    with GgufFile.open(path) as gguf:
        engine = DeepSeekEngine.load(
            LoadContext(
                gguf=gguf,
                device=device,
                ops=registry.binder(device, torch.float32),
                limits=limits,
                sampler=lambda vocab_size: Sampler(1, vocab_size),
                settings=DeepSeekSettings(ds4_step_rows=64),
                progress=lambda done, total, what: None,
            )
        )
        blocks = -(-len(ids) // BLOCK_TOKENS) + 2
        engine.allocate(blocks)
        seen: list[Tensor] = []
        run = engine._run

        def spy(batch):
            everything = torch.arange(batch.rows, dtype=torch.int32)
            logits, greedy = run(replace(batch, logit_rows=everything, logits=batch.rows))
            seen.append(logits.clone())
            rows = batch.logit_rows.long()
            return logits[rows], greedy[rows]

        engine._run = spy
        driver = Driver(engine, pool_blocks=blocks)
        driver.submit(ids, max_tokens=1)
        driver.run()
        engine.close()
    return torch.cat(seen)


def bytes_per_token(cache: str) -> float:
    """Of the real model's entries."""
    types = CacheTypes(cache)
    block = 0
    for ratio in V4_FLASH.ratios:
        if ratio:
            block += EntryLayout(ratio=ratio, head_dim=512, cache_type=cache).bytes_per_block
        if ratio == 4:
            layout = EntryLayout(ratio=4, head_dim=128, cache_type=types.indexer)
            block += layout.bytes_per_block
    return block / BLOCK_TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", type=int, default=500)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = replace(
        V4_FLASH,
        ratios=V4_FLASH.ratios[: options.layers],
        width=256,
        heads=8,
        q_rank=128,
        groups=2,
        out_rank=128,
        index_top_k=64,
        experts=8,
        top_k=2,
        inner=64,
        vocab=1024,
        dense="F32",
        experts_type="F32",
        shared="F32",
        seed=options.seed,
    )
    ids = random.Random(options.seed).choices(range(256), k=options.positions)
    with tempfile.TemporaryDirectory() as folder:
        path = write_deepseek(Path(folder) / "model.gguf", model)
        exact = logits_of(path, "f32", ids)
        spread = float(exact.std())
        print("| type | bytes a token (real model) | same best token | mean error | largest |")
        print("| --- | --: | --: | --: | --: |")
        for cache in CACHE_TYPES:
            found = exact if cache == "f32" else logits_of(path, cache, ids)
            error = (found - exact).abs() / spread
            same = float((found.argmax(-1) == exact.argmax(-1)).float().mean())
            print(
                f"| {cache} | {bytes_per_token(cache):.0f} | {100 * same:.1f} % | "
                f"{float(error.mean()):.1e} | {float(error.max()):.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
