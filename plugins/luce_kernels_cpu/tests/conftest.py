"""Small engines on native kernels, and steps made by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from luce_kernels_cpu import library, luce_register_kernels
from luce_kernels_cpu.fuse import ALL_PASSES, Fusion
from luce_kernels_cpu.provider import Provider, provider
from luce_kernels_cpu.recorder import compile_recording
from luce_kernels_cpu.testing import ISAS, force_isa
from luce_llama.engine import LlamaEngine

from luce_core.batch.build import pack
from luce_core.batch.packed import PackedBatch
from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.ops.registry import NO_OVERRIDES
from luce_core.plan import StepPlan
from luce_core.sampling.sampler import Sampler
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

BLOCKS = 240
SLOTS = 6
MAX_DRAFT = 8
BLOCK_SIZE = 16

Load = Callable[..., LlamaEngine]

# `make kernels-sanitize` runs these tests on a build with AddressSanitizer and UBSan.
if "NATIVE_LIBRARY" in os.environ:
    library.LIBRARY = Path(os.environ["NATIVE_LIBRARY"])


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this machine has, in use for the test."""
    usual = library.native().lk_isa().decode()
    if not force_isa(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    force_isa(usual)


@pytest.fixture(scope="module")
def pools() -> dict[int, Provider]:
    """Pools of 1, 2 and 3 workers."""
    made = {count: Provider(library.native()) for count in (1, 2, 3)}
    for count, pool in made.items():
        pool.set_threads(count)
        # Or a busy machine runs all of them on one worker.
        pool.library.lk_pool_keep_all(pool.pool, 1)
    return made


def no_drafts(request: Any, width: int) -> Sequence[int]:
    return ()


@pytest.fixture(scope="session")
def load() -> Load:
    def load_engine(
        path: Path,
        *,
        recorded: bool = True,
        fusion: Fusion = ALL_PASSES,
        cache: str = "f16",
        threads: int = 2,
        isa: str | None = None,
        drafts: Any = no_drafts,
        overrides: Mapping[str, str] = NO_OVERRIDES,
    ) -> LlamaEngine:
        registry = core_registry()
        luce_register_kernels(registry.register_kernel)
        if recorded:
            registry.register_recorder(
                partial(compile_recording, fusion=fusion), provider="native", device="cpu"
            )
        device = Device("cpu")
        binder = registry.binder(device, torch.float32, overrides, threads=threads, isa=isa)
        context = LoadContext(
            gguf=GgufFile.open(path),
            device=device,
            ops=binder,
            limits=EngineLimits(
                max_slots=SLOTS, max_context=None, cache_type_k=cache, cache_type_v=cache
            ),
            sampler=lambda vocab_size: Sampler(SLOTS, vocab_size),
            settings=None,
            progress=lambda done, total, what: None,
        )
        own = provider()
        own.set_threads(threads)
        own.library.lk_pool_keep_all(own.pool, 1)  # or a busy machine tests one worker
        engine = LlamaEngine.load(context, drafts=drafts, max_draft=MAX_DRAFT)
        engine.allocate(BLOCKS)
        return engine

    return load_engine


class Stepper:
    """Runs plans on an engine without a scheduler; slot i owns every SLOTS-th block."""

    def __init__(self, engine: LlamaEngine) -> None:
        self.engine = engine
        self.slots: dict[int, Any] = {
            slot: SimpleNamespace(
                table=SimpleNamespace(
                    block_size=BLOCK_SIZE, blocks=list(range(slot, BLOCKS, SLOTS))
                )
            )
            for slot in range(SLOTS)
        }

    def pack(
        self, plan: StepPlan, drafts: Mapping[int, Sequence[int]] | None = None
    ) -> PackedBatch:
        assert self.engine._buffers is not None
        return pack(plan, self.slots, self.engine._buffers, drafts or {})

    def run(self, plan: StepPlan, drafts: Mapping[int, Sequence[int]] | None = None) -> Any:
        """A copy of the step's logits [L, V]."""
        with torch.inference_mode():
            return self.engine._run(self.pack(plan, drafts))[0].clone()


@pytest.fixture(scope="session")
def stepper() -> type[Stepper]:
    return Stepper


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Callable[..., Path]:
    """Writes a small model of an architecture and a quant type."""
    folder = tmp_path_factory.mktemp("models")

    def write(arch: str = "llama", qtype: str = "Q4_0", **sizes: int) -> Path:
        shape = {"layers": 2, "width": 64, "heads": 2, "kv_heads": 1, "ff": 160, **sizes}
        path = folder / f"{arch}-{qtype}-{'-'.join(map(str, shape.values()))}.gguf"
        if not path.exists():
            write_synthetic(path, SyntheticModel(arch=arch, qtype=qtype, context=640, **shape))
        return path

    return write
