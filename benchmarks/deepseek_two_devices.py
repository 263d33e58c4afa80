"""DeepSeek V4 with experts on one device and on two: tokens, copies and launches, time of a step.

    python benchmarks/deepseek_two_devices.py [--file FILE] [--device cpu] [--expert-device cpu]

Writes a small model with random weights to FILE if it is not there (default: a temporary one).
Each way to run it decodes the same prompts in turn; a Markdown table tells the medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from luce_deepseek_v4.synthetic import SyntheticDeepSeek, write_deepseek
from torch import Tensor

from luce_core.load import load_model, open_model
from luce_core.plugin_manager import build_plugin_manager
from luce_core.settings import parse_settings, with_engine_settings
from luce_core.testing.driver import Driver

MODEL = SyntheticDeepSeek(
    ratios=(0, 4, 128, 4),
    width=1024,
    heads=8,
    head_dim=512,
    rotary_dim=64,
    q_rank=256,
    groups=4,
    out_rank=256,
    window=128,
    index_heads=16,
    index_dim=128,
    index_top_k=64,
    experts=32,
    top_k=6,
    inner=512,
    vocab=4096,
    context=4096,
    original_context=512,
)
BUDGET_MB = 36  # a third of the experts
REQUESTS = (1, 4)
PROMPT, TOKENS, ROUNDS = 16, 16, 3
WAYS = {
    "one device": None,
    "one device, op by op": None,
    "two, both, op by op": (),
    "two, each pick by itself": ("--no-ds4-batch-copies", "--no-ds4-group-experts"),
    "two, picks grouped": ("--no-ds4-batch-copies",),
    "two, copies batched": ("--no-ds4-group-experts",),
    "two, both": (),
}


@dataclass
class Run:
    """What a way to run gave, for one number of requests."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    copies: float = 0.0
    launches: float = 0.0


class Way:
    """A loaded engine; everything as `luce serve` does it."""

    def __init__(self, words: list[str]) -> None:
        plugins = build_plugin_manager()
        kinds = {name: spec.settings for name, spec in plugins.engines().items() if spec.settings}
        settings = parse_settings(words, with_engine_settings(kinds))
        loaded = load_model(open_model(settings, plugins), plugins, lambda *progress: None)
        self.engine: Any = loaded.engine
        self.mode = loaded.ops.modes[0]
        self._blocks = loaded.pool.blocks

    def run_op_by_op(self) -> None:
        """As steps run where nobody can replay them."""
        self.engine._run = self.engine._model.forward
        self.mode = "op by op"

    def decode(self, run: Run, requests: int, *, keep_logits: bool = False) -> None:
        """Adds the seconds of each decoding step, and the traffic of those steps."""
        driver = Driver(self.engine, pool_blocks=self._blocks)
        words = random.Random(requests)
        asked = [
            driver.submit(words.choices(range(MODEL.vocab), k=PROMPT), max_tokens=TOKENS)
            for _ in range(requests)
        ]
        while any(len(request.generated) < 2 for request in asked):
            driver.step()
        compute = self.engine._run
        if keep_logits:
            # All of them: a replayed step leaves out logits that nobody reads.
            self.engine._run = lambda batch: _kept(
                compute(replace(batch, logits_read=None)), run.logits
            )
        before = self._traffic()
        steps = 0
        while all(len(request.generated) < TOKENS - 1 for request in asked):
            started = time.perf_counter()
            driver.step()
            run.seconds.append(time.perf_counter() - started)
            steps += 1
        after = self._traffic()
        run.copies, run.launches = ((after[i] - before[i]) / steps for i in range(2))
        self.engine._run = compute
        driver.run()
        run.tokens = [driver.output(request).tokens for request in asked]

    def _traffic(self) -> tuple[int, int]:
        facts = self.engine.facts.get("expert_devices", {})
        return facts.get("copies", 0), facts.get("expert_launches", 0)


def _kept(outputs: tuple[Tensor, ...], logits: list[Tensor]) -> tuple[Tensor, ...]:
    logits.append(outputs[0].float().cpu().clone())
    return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--file", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--expert-device", default="cpu")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = chosen.file or Path(folder) / "deepseek.gguf"
        if not file.exists():
            write_deepseek(file, MODEL)
        common = [str(file), "--target-device", chosen.device, "--max-concurrency", "4"]
        common += ["--kv-pool-tokens", "4096", "--max-ctx", "512"]
        second = ["--ds4-expert-device", chosen.expert_device]
        second += ["--ds4-expert-budget-mb", str(BUDGET_MB)]
        ways = {}
        for name, words in WAYS.items():
            ways[name] = Way([*common, *([] if words is None else [*second, *words])])
        for name in ways:
            if name.endswith("op by op"):
                ways[name].run_op_by_op()
        report({requests: measured(ways, requests) for requests in REQUESTS}, ways)
        for way in ways.values():
            way.engine.close()


def measured(ways: dict[str, Way], requests: int) -> dict[str, Run]:
    runs = {name: Run() for name in ways}
    for name, way in ways.items():
        way.decode(runs[name], requests, keep_logits=True)
        runs[name].seconds.clear()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            way.decode(runs[name], requests)
    return runs


def report(found: dict[int, dict[str, Run]], ways: dict[str, Way]) -> None:
    for name, way in ways.items():
        facts = way.engine.facts.get("expert_devices", {})
        where = f"; {facts['near_experts']} near, {facts['far_experts']} far" if facts else ""
        print(f"{name}: {way.mode}{where}")
    print("\n| requests | experts | copies | launches | ms | tokens | logits |")
    print("| --: | --- | --: | --: | --: | --- | --: |")
    for requests, runs in found.items():
        tokens, logits = runs["one device"].tokens, runs["one device"].logits
        for name, run in runs.items():
            launches = run.launches or 3 * len(MODEL.ratios)
            same = "the same" if run.tokens == tokens else "others"
            pairs = zip(logits, run.logits, strict=True)
            worst = f"{max(float((a - b).abs().max()) for a, b in pairs):.1e}"
            print(
                f"| {requests} | {name} | {run.copies:.1f} | {launches:.1f} "
                f"| {1e3 * statistics.median(run.seconds):.2f} | {same} | {worst} |"
            )


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
