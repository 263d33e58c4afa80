"""From settings to a loaded engine: file, engine choice, ops, weights, KV pool, text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from luce_core.device import Device
from luce_core.engine import (
    DraftContext,
    EngineLimits,
    EngineSpec,
    LoadContext,
    SeqEngine,
    check_engine,
)
from luce_core.errors import ConfigError
from luce_core.host_memory import available_bytes, usable_cores
from luce_core.kv.pool_size import CPU_SHARE, PoolSize, size_pool
from luce_core.ops.core_ops import core_registry
from luce_core.ops.devices import activation_dtype, require_device
from luce_core.ops.kernel import REFERENCE
from luce_core.ops.registry import EVERY_OP, OpBinder, OpRegistry
from luce_core.plugin_manager import Plugins, choose_engine
from luce_core.sampling.sampler import Sampler
from luce_core.settings import Settings
from luce_core.text.chat_format import TEMPLATES
from luce_core.text.formats import AUTO, ModelText, TextFormats
from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.model_ref import resolve_model

Progress = Callable[[int, int, str], None]

# Settings that engines share: an engine either lists them in `accepts` or they are refused.
SHARED_SETTINGS = (
    "draft",
    "draft_device",
    "draft_block_size",
    "draft_min_acceptance",
    "peer_access",
    "cache_type_k",
    "cache_type_v",
)
_DRAFT_DETAILS = ("draft_device", "draft_block_size", "draft_min_acceptance")
_BUNDLED_TEMPLATES = ("raw_prompt_identity",)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """Checked files with their text side and the engine that will run them; no weights yet."""

    settings: Settings
    gguf: GgufFile
    draft: DraftContext | None
    spec: EngineSpec
    device: Device
    text: ModelText


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An engine with its KV cache allocated, ready for a runtime."""

    opened: OpenedModel
    engine: SeqEngine
    pool: PoolSize
    ops: OpBinder


def open_model(settings: Settings, plugins: Plugins) -> OpenedModel:
    """Everything that can be refused before weights are read. Raises LuceError."""
    device = Device.parse(settings.target_device)
    require_device(device)
    gguf = GgufFile.open(resolve_model(settings.model))
    spec = choose_engine(
        plugins,
        architecture=gguf.architecture,
        wanted=settings.engine,
        specs=plugins.engines(),
    )
    refuse_foreign_settings(settings, spec)
    draft = open_draft(settings, device)
    tokenizer = Tokenizer.from_metadata(gguf.metadata, pre=settings.pre)
    formats = TextFormats()
    plugins.register_text_formats(formats.register)
    template = settings.chat_template_file
    if template is not None and str(template) in _BUNDLED_TEMPLATES:
        template = TEMPLATES / f"{template}.jinja"
    text = formats.for_model(
        gguf.metadata,
        tokenizer,
        template_file=template,
        output_parser="none" if settings.reasoning == "off" else AUTO,
        system_anywhere=settings.system_anywhere,
    )
    return OpenedModel(settings, gguf, draft, spec, device, text)


def open_draft(settings: Settings, target: Device) -> DraftContext | None:
    """The draft model's checked file, None if no draft is named. Raises LuceError."""
    if settings.draft is None:
        for name in _DRAFT_DETAILS:
            if getattr(settings, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} needs --draft, which is not given")
        return None
    device = target if settings.draft_device is None else Device.parse(settings.draft_device)
    if device != target:
        raise ConfigError(
            f"--draft-device {device}: the draft runs on the model's device, which is {target}"
        )
    return DraftContext(
        gguf=GgufFile.open(resolve_model(settings.draft), role="draft"),
        device=device,
        block_size=settings.draft_block_size,
        min_acceptance=settings.draft_min_acceptance,
    )


def refuse_foreign_settings(settings: Settings, spec: EngineSpec) -> None:
    """ConfigError naming the first flag that was given and that this engine does not take."""
    fields = type(settings).model_fields
    foreign = [name for name in SHARED_SETTINGS if name not in spec.accepts]
    foreign += [name for name, owner in settings.engine_fields.items() if owner != spec.name]
    for name in foreign:
        if getattr(settings, name) != fields[name].get_default(call_default_factory=True):
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"engine {spec.name} does not take {flag}")


def build_registry(plugins: Plugins) -> OpRegistry:
    """The core's ops and what the plugins add."""
    registry = core_registry()
    plugins.register_ops(registry)
    return registry


def op_overrides(words: tuple[str, ...]) -> dict[str, str]:
    """`--op` words: OP=PROVIDER for one op, PROVIDER for every op that it offers."""
    overrides: dict[str, str] = {}
    for word in words:
        op, equals, provider = word.partition("=")
        overrides |= {op: provider} if equals else {EVERY_OP: op}
    return overrides


def load_model(opened: OpenedModel, plugins: Plugins, progress: Progress) -> LoadedModel:
    """Read the weights, build the engine, size and allocate its KV pool. Raises LuceError.

    `progress(done_bytes, total_bytes, what)` is called from this thread.
    """
    settings, spec, device = opened.settings, opened.spec, opened.device
    # The HTTP side needs a core of its own: where it shares one with a torch thread, the others
    # spin while they wait for that thread, and a step takes several times as long.
    torch.set_num_threads(settings.threads or max(1, usable_cores() - 1))
    ops = build_registry(plugins).binder(
        device,
        activation_dtype(device),
        op_overrides(settings.op),
        threads=settings.threads,
        isa=settings.kernel_isa,
        table=settings.kernel_table,
    )
    slots = settings.max_concurrency
    kept_tokens = ops.bind("kept_tokens")
    # The reference is what the sampler does by itself, with less around it.
    keep = None if kept_tokens.kernel.provider == REFERENCE else kept_tokens
    context = LoadContext(
        gguf=opened.gguf,
        device=device,
        ops=ops,
        limits=EngineLimits(
            max_slots=slots,
            max_context=settings.max_ctx or None,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
        ),
        sampler=lambda vocab_size: Sampler(slots, vocab_size, device.torch_name, keep=keep),
        settings=engine_settings(settings, spec),
        progress=progress,
        draft=opened.draft,
        peer_access=settings.peer_access,
    )
    engine = check_engine(spec.build(context))
    opened.gguf.release_pages()
    pool = size_pool(
        engine.capabilities,
        engine.memory_need,
        free_bytes=free_bytes(device),
        wanted_tokens=settings.kv_pool_tokens,
    )
    engine.allocate(pool.blocks)
    return LoadedModel(opened, engine, pool, ops)


def engine_settings(settings: Settings, spec: EngineSpec) -> Any:
    """The engine's own settings record, or None if it has none."""
    if spec.settings is None:
        return None
    values = {name: getattr(settings, name) for name in spec.settings.model_fields}
    return spec.settings.model_validate(values)


def free_bytes(device: Device) -> int:
    """Memory that may be planned with: a share of the host's, or what the device has free."""
    if device.kind == "cpu":
        return int(CPU_SHARE * available_bytes())
    return torch.cuda.mem_get_info(device.index)[0]
