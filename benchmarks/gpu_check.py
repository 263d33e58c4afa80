"""On a machine with a GPU: the parity of every kernel, then each op's time, over its limit if the
roofline knows one.

    python benchmarks/gpu_check.py --device hip:0 --limits r9700 --json check.json

Ops of installed plugins count too. `--limits` names the device whose published figures count
(r9700, strix-halo, h200). Prints Markdown with device, date and versions, for docs/benchmarks/.
Exit code 1 if a kernel is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import orjson
import torch
from luce_kernels_rocm.offer_tables import CORE_OFFERS
from luce_kernels_rocm.roofline.build import roofline
from luce_kernels_rocm.roofline.models import models_named
from luce_kernels_rocm.roofline.shapes import ModelShape, Product, Step
from luce_kernels_rocm.timing import EventClock, Run
from torch import Tensor

from luce_core.device import Device
from luce_core.errors import LuceError
from luce_core.load import build_registry, require_device
from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.device_tools import OpCost, StepCost
from luce_core.ops.program import Rates
from luce_core.ops.registry import OpBinder, OpRegistry
from luce_core.plugin_manager import build_plugin_manager
from luce_core.request import SamplingParams
from luce_core.sampling.filters import row_filters
from luce_core.testing.op_parity import check_parity, parity_call, parity_cases

PROVIDER = "luce_kernels_rocm"
DTYPE = torch.float16
# Rows that all filters of the sampler go over.
FILTERED = SamplingParams(temperature=1.0, top_k=40, top_p=0.9, min_p=0.01)
# Weights of so many bytes take turns, so that no cache holds them.
TURNING_BYTES = 512 << 20
MOST_TURNS = 64

Clock = Callable[[Sequence[Run]], float]


@dataclass(frozen=True, slots=True)
class Measured:
    """One call of an op."""

    model: str
    step: str
    op: str
    what: str
    limit_us: float
    measured_us: float

    @property
    def over_limit(self) -> float:
        return self.measured_us / self.limit_us


@dataclass(frozen=True, slots=True)
class Slowest:
    """The case of an op's tests that takes longest."""

    op: str
    case: str
    measured_us: float


def wrong_kernels(registry: OpRegistry, device: Device, ops: Iterable[str] = ()) -> Iterator[str]:
    """A line for each case that a kernel fails; `ops` limits it to some."""
    wanted = set(ops)
    for parity in parity_cases(registry, device, provider=PROVIDER):
        if wanted and parity.spec.name not in wanted:
            continue
        try:
            check_parity(parity, device)
        except Exception as error:  # a kernel that does not compile must not hide the others
            yield f"{parity.id}: {type(error).__name__}: {error}"


def measure(
    binder: OpBinder,
    clock: Clock,
    steps: Iterable[StepCost],
    rates: Rates,
    known: Iterable[ModelShape],
) -> Iterator[Measured]:
    """Each core op of the steps of known models, with one call's time and limit."""
    models = {shape.name: shape for shape in known}
    for step in steps:
        model = models[step.model]
        (shape,) = (each for each in model.steps if each.name == step.step)
        calls = Calls(binder, model, shape)
        for cost in step.ops:
            if cost.op not in CORE_OFFERS:
                continue
            seconds = clock(calls.of(cost))
            limit = rates.seconds(cost.least)
            yield Measured(step.model, step.step, cost.op, cost.what, 1e6 * limit, 1e6 * seconds)


def slowest_cases(registry: OpRegistry, device: Device, clock: Clock) -> Iterator[Slowest]:
    """For ops of which `Calls` has no shapes: those of models' plugins."""
    found: dict[str, Slowest] = {}
    for parity in parity_cases(registry, device, provider=PROVIDER):
        op = parity.spec.name
        if op in CORE_OFFERS or parity.dtype != DTYPE:
            continue
        measured_us = 1e6 * clock((parity_call(parity, device),))
        if op not in found or found[op].measured_us < measured_us:
            found[op] = Slowest(op, parity.case.name, measured_us)
    yield from found.values()


class Calls:
    """Real calls of the ops of a step, on data of its shapes."""

    def __init__(self, binder: OpBinder, model: ModelShape, step: Step) -> None:
        self._binder = binder
        self._model = model
        self._step = step
        self._maker = CaseMaker(binder.device, DTYPE)

    def of(self, cost: OpCost) -> tuple[Run, ...]:
        """What `cost` is about: several calls on data of their own where weights are large."""
        model, step, maker, bind = self._model, self._step, self._maker, self._binder.bind
        rows, logits, width = step.all_rows, step.all_logits, model.width
        match cost.op:
            case "quant_matmul":
                (product,) = (each for each in model.products if cost.what.startswith(each.name))
                return self._products(product)
            case "embedding_rows":
                table = maker.weight(4096, width, model.embedding)
                tokens = maker.integers(0, 4096, rows)
                embed = self._binder.embedding(table)
                return (lambda: embed(tokens),)
            case "rms_norm":
                x = maker.normal(rows, *_sizes(cost))
                norm = bind("rms_norm", weights=(maker.normal32(x.shape[-1]),), eps=1e-6)
                return (lambda: norm(x),)
            case "rope":
                x = maker.normal(rows, *_sizes(cost))
                positions = maker.integers(0, 4096, rows)
                facts = {"rotary_dim": model.rotary_dim, "interleaved": False, "theta": 1e6}
                turn = bind("rope", **facts)
                return (lambda: turn(x, positions),)
            case "kv_write" | "paged_attention":
                return self._cached(cost.op)
            case "swiglu" | "add":
                a, b = maker.normal(rows, *_sizes(cost)), maker.normal(rows, *_sizes(cost))
                op = bind(cost.op)
                return (lambda: op(a, b),)
            case "gather_rows":
                x, picked = maker.normal(rows, width), maker.integers(0, rows, logits)
                gather = bind("gather_rows")
                return (lambda: gather(x, picked),)
            case "greedy_token":
                scores = maker.normal32(logits, model.vocab).to(self._binder.device)
                greedy = bind("greedy_token")
                return (lambda: greedy(scores),)
            case "kept_tokens":
                return self._filtered(maker.normal32(logits, model.vocab).to(self._binder.device))
        raise LuceError(f"gpu_check does not know how to call {cost.op}")

    def _products(self, product: Product) -> tuple[Run, ...]:
        x = self._maker.normal(product.rows(self._step), product.k)
        # Every weight is read once in a step; here a few take turns.
        first = self._maker.weight(product.n, product.k, product.qtype)
        turns = max(1, min(MOST_TURNS, product.count, TURNING_BYTES // first.blocks.numel()))

        def call() -> Run:
            weight = type(first)(first.name, first.qtype, first.shape, first.blocks.clone())
            linear = self._binder.linear(
                weight, out_dtype=torch.float32 if product.is_head else None
            )
            return lambda: linear(x)

        return tuple(call() for _ in range(turns))

    def _filtered(self, scores: Tensor) -> tuple[Run, ...]:
        rows, vocab = scores.shape
        filters = row_filters([FILTERED] * rows, vocab, str(scores.device))
        scaled = scores - scores.amax(1, keepdim=True)
        keep = self._binder.bind("kept_tokens")
        return (lambda: keep(scores, scaled, *filters[:3]),)

    def _cached(self, op: str) -> tuple[Run, ...]:
        model, step, maker = self._model, self._step, self._maker
        layout = model.layout
        segments = [Segment(step.context, step.rows, step.prefill)] * step.segments
        case = maker.batch(segments, layout)
        cache = case.filled_cache()
        if op == "kv_write":
            kv = maker.normal(step.all_rows, layout.kv_heads, layout.head_dim)
            write = self._binder.bind("kv_write", **layout.facts)
            return (lambda: write(kv, kv, case.batch.kv_rows, cache.k, cache.v),)
        q = maker.normal(step.all_rows, model.heads, layout.head_dim)
        facts = {**layout.facts, "heads": model.heads, "scale": layout.head_dim**-0.5}
        attend = self._binder.bind("paged_attention", **facts)
        return (lambda: attend(q, case.batch, cache.k, cache.v),)


def _sizes(cost: OpCost) -> tuple[int, ...]:
    """Of a row, from what a cost is about: `5120`, `q: 24 x 256`."""
    return tuple(int(size) for size in cost.what.rpartition(": ")[2].split(" x "))


def markdown(title: str, found: Sequence[Measured], slowest: Sequence[Slowest] = ()) -> str:
    lines = [title, ""]
    for model, step in dict.fromkeys((each.model, each.step) for each in found):
        lines += [f"{model}, {step}:", ""]
        lines += ["| op | of what | limit us | measured us | measured / limit |"]
        lines += ["| --- | --- | --: | --: | --: |"]
        lines += [
            f"| {each.op} | {each.what} | {each.limit_us:.3g} | {each.measured_us:.3g} "
            f"| {each.over_limit:.2f} |"
            for each in found
            if (each.model, each.step) == (model, step)
        ]
        lines.append("")
    if slowest:
        lines += ["Other ops, the slowest case of their tests:", ""]
        lines += ["| op | case | measured us |", "| --- | --- | --: |"]
        lines += [f"| {each.op} | {each.case} | {each.measured_us:.3g} |" for each in slowest]
        lines.append("")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda:N or hip:N")
    parser.add_argument("--limits", required=True, help="r9700, strix-halo or h200")
    parser.add_argument("--model", help="of the roofline's; default: all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    try:
        device = Device.parse(options.device)
        if device.kind == "cpu":
            raise LuceError("gpu_check needs a GPU: --device hip:0 or cuda:0")
        require_device(device)
        shown = roofline((options.limits,), options.model)
    except LuceError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    plugins = build_plugin_manager()
    registry = build_registry(plugins)
    if next(parity_cases(registry, device, provider=PROVIDER), None) is None:
        problems = "; ".join(f"{each.name}: {each.error}" for each in plugins.failures)
        print(f"gpu_check: {PROVIDER} has no kernel for {device}. {problems}", file=sys.stderr)
        return 2
    wrong = list(wrong_kernels(registry, device))
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    place = torch.device(device.torch_name)
    clock = EventClock(place)
    binder = registry.binder(device, DTYPE)
    rates = shown.devices[0].rates
    found = list(measure(binder, clock.seconds, shown.steps, rates, models_named(None)))
    slowest = list(slowest_cases(registry, device, clock.seconds))
    name = torch.cuda.get_device_name(place)
    title = (
        f"{name} against the figures of {shown.devices[0].title}, {date.today()}, torch "
        f"{torch.__version__}; {len(wrong)} parity cases fail."
    )
    print(markdown(title, found, slowest))
    if options.json is not None:
        report: dict[str, Any] = {
            "title": title,
            "wrong": wrong,
            "ops": [asdict(each) for each in found],
            "slowest": [asdict(each) for each in slowest],
        }
        options.json.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
