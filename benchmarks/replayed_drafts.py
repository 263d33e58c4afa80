"""Speculation of a hybrid model against plain decoding: total tokens a second by requests at once.

    python benchmarks/replayed_drafts.py TARGET.gguf DRAFT.gguf --tokens-per-round 5

The draft model runs at its full cost; with --tokens-per-round its proposals are replaced by the
known continuation, corrupted so that a round of full blocks yields so many tokens on average.
Without it the draft's own proposals count. All requests decode greedily behind random prompts of
equal length; tokens are compared, prefill is not timed. Runs with and without drafts take turns in
one process; ratios are of pairs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch
from luce_qwen_dflash2.engine import QwenEngine
from luce_qwen_dflash2.replayed import ReplayedDrafts, corruption_for
from luce_qwen_dflash2.widths import FixedWidths, Widths
from rich.console import Console
from rich.table import Table

from luce_core.device import Device
from luce_core.engine import DraftContext, EngineLimits, LoadContext
from luce_core.host_memory import usable_cores
from luce_core.load import build_registry
from luce_core.plugin_manager import build_plugin_manager
from luce_core.request import Request
from luce_core.sampling.sampler import Sampler
from luce_core.testing.driver import Driver
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.model_ref import resolve_model

PROMPT_TOKENS = 64


class NoDrafts:
    """What a prompt may be followed by is set once it is known."""

    def __init__(self) -> None:
        self.replayed: ReplayedDrafts | None = None

    def __call__(self, request: Request, width: int) -> list[int]:
        return [0] * width if self.replayed is None else self.replayed(request, width)


def load(options: argparse.Namespace, source: NoDrafts | None, *, with_draft: bool) -> QwenEngine:
    device = Device.parse(options.device)
    plugins = build_plugin_manager()
    ops = build_registry(plugins).binder(device, options.dtype, threads=options.threads)
    draft = None
    if with_draft:
        gguf = GgufFile.open(resolve_model(options.draft), role="draft")
        draft = DraftContext(gguf=gguf, device=device, block_size=options.block_size)
    slots = max(options.requests)
    widths: Widths | None = None
    if options.width is not None:
        widths = FixedWidths(options.width)
    context = LoadContext(
        gguf=GgufFile.open(resolve_model(options.target)),
        device=device,
        ops=ops,
        limits=EngineLimits(max_slots=slots, max_context=options.context, cache_type_k="q8_0",
                            cache_type_v="q8_0"),
        sampler=lambda vocab_size: Sampler(slots, vocab_size, device.torch_name),
        settings=None,
        progress=lambda done, total, what: None,
        draft=draft,
    )  # fmt: skip
    engine = QwenEngine.load(context, drafts=source, widths=widths)
    engine.allocate(blocks(options))
    return engine


def blocks(options: argparse.Namespace) -> int:
    return max(options.requests) * -(-options.context // 16)


def prompts(options: argparse.Namespace, vocab: int) -> list[tuple[int, ...]]:
    chance = random.Random(options.seed)
    count = max(options.requests)
    return [tuple(chance.choices(range(vocab), k=PROMPT_TOKENS)) for _ in range(count)]


def run(
    engine: QwenEngine, options: argparse.Namespace, texts: list[tuple[int, ...]]
) -> tuple[float, list[Request], int]:
    """Tokens a second of the decode steps, the requests, the steps."""
    driver = Driver(engine, pool_blocks=blocks(options))
    requests = [driver.submit(text, max_tokens=options.tokens) for text in texts]
    while not all(request.generated for request in requests):
        driver.step()
    before = sum(len(request.generated) for request in requests)
    started, steps = time.perf_counter(), 0
    while any(request.finish is None for request in requests):
        driver.step()
        steps += 1
    seconds = time.perf_counter() - started
    made = sum(len(request.generated) for request in requests) - before
    return made / seconds, requests, steps


def main() -> None:
    options = parsed()
    # As `luce serve` does: torch threads that share a core spin while they wait for each other.
    torch.set_num_threads(options.threads or max(1, usable_cores() - 1))
    source = NoDrafts() if options.tokens_per_round is not None else None
    plain = load(options, None, with_draft=False)
    drafting = load(options, source, with_draft=True)
    capabilities = drafting.capabilities
    texts = prompts(options, min(capabilities.vocab_size, 4096))
    _, requests, _ = run(plain, options, texts)
    known = {request.prompt: list(request.generated) for request in requests}
    if source is not None:
        corruption = corruption_for(options.tokens_per_round, capabilities.max_draft)
        source.replayed = ReplayedDrafts(
            known, corruption=corruption, vocab_size=capabilities.vocab_size, seed=options.seed
        )
    table = Table("requests", "plain tok/s", "drafting tok/s", "ratio", "tokens a step", "accepted")
    for count in options.requests:
        pairs, made, unequal = [], [], 0
        for _ in range(options.repeats):
            plain_rate, _, plain_steps = run(plain, options, texts[:count])
            rate, requests, steps = run(drafting, options, texts[:count])
            pairs.append((plain_rate, rate))
            made.append(plain_steps / steps)
            unequal += sum(request.generated != known[request.prompt] for request in requests)
        proposed = sum(request.proposed for request in requests)
        accepted = sum(request.accepted for request in requests)
        ratios = [drafted / alone for alone, drafted in pairs]
        table.add_row(
            str(count),
            f"{statistics.median(alone for alone, _ in pairs):.1f}",
            f"{statistics.median(drafted for _, drafted in pairs):.1f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{statistics.median(made):.2f}",
            f"{accepted} of {proposed}" + (f", {unequal} texts differ" if unequal else ""),
        )
    Console().print(table)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--tokens-per-round", type=float, help="replay drafts at this rate")
    parser.add_argument("--width", type=int, help="always so many drafts, instead of what pays")
    parser.add_argument("--block-size", type=int, help="as --draft-block-size of luce serve")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tokens", type=int, default=192, help="of each request")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.dtype = torch.float32 if options.device == "cpu" else torch.float16
    return options


if __name__ == "__main__":
    main()
