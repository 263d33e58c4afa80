"""`luce serve`: load, listen, and leave in good order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from math import prod
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from luce_core.hookspecs import RequestSummary
from luce_core.load import LoadedModel, OpenedModel, load_model, open_model
from luce_core.pace import build_policy, describe_pacing, pace
from luce_core.plugin_manager import Plugins
from luce_core.readable import readable
from luce_core.runtime.arrivals import Arrivals
from luce_core.runtime.hub import StreamLimits
from luce_core.runtime.runtime import Runtime
from luce_core.scheduler.pacing import Pacing
from luce_core.server.app import build_app
from luce_core.server.listen import HttpServer, check_exposure
from luce_core.server.metrics import Metrics
from luce_core.server.served_model import ServedModel
from luce_core.server.state import ServerState, Serving
from luce_core.settings import Settings

log = logging.getLogger(__name__)

# For a supervisor: the engine was lost, a restart is what helps (EX_SOFTWARE of sysexits.h).
EXIT_ENGINE_DEAD = 70
# As shells report a process that SIGINT ended.
EXIT_INTERRUPTED = 130
_POLL_S = 0.05


def serve(settings: Settings, plugins: Plugins, console: Console) -> int:
    """Run until a signal or the loss of the engine; the process's exit code."""
    check_exposure(settings)
    opened = open_model(settings, plugins)
    try:
        import uvloop  # optional extra `fast`; absent on Windows
    except ImportError:
        return asyncio.run(_serve(opened, plugins, console))
    return uvloop.run(_serve(opened, plugins, console))


async def _serve(opened: OpenedModel, plugins: Plugins, console: Console) -> int:
    settings = opened.settings
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    state = ServerState(settings)
    http = HttpServer(build_app(state), settings)
    await http.start()
    try:
        ready = await _load(opened, plugins, console, signals)
        if ready is None:
            await http.close()
            # The thread that loads cannot be ended, and a normal exit would wait for it.
            logging.shutdown()
            sys.stdout.flush()
            os._exit(EXIT_INTERRUPTED)
        loaded, pacing = ready
        metrics = Metrics([_finished_hook(plugins)])
        runtime = build_runtime(settings, loaded, metrics, pacing, state.arrivals)
        await runtime.start()
        model = describe_model(settings, loaded, plugins, pacing)
        state.serving = Serving(runtime, model, metrics)
        console.print(start_screen(settings, loaded, model, http.urls))
        return await _until_over(runtime, settings, signals, console)
    finally:
        await http.close()


async def _load(
    opened: OpenedModel,
    plugins: Plugins,
    console: Console,
    signals: asyncio.Queue[signal.Signals],
) -> tuple[LoadedModel, Pacing | None] | None:
    """Load and measure in a thread behind a bar, so that /health and Ctrl-C work meanwhile."""
    columns = (
        TextColumn("loading"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    hidden = not console.is_terminal  # a log or a pipe has no use for a bar
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=opened.gguf.total_bytes)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        def work() -> tuple[LoadedModel, Pacing | None]:
            loaded = load_model(opened, plugins, show)
            return loaded, pace(opened.settings, loaded)

        loading = asyncio.create_task(asyncio.to_thread(work))
        interrupt = asyncio.create_task(signals.get())
        await asyncio.wait((loading, interrupt), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            console.print("interrupted while loading")
            return None
        interrupt.cancel()
        return loading.result()


async def _until_over(
    runtime: Runtime,
    settings: Settings,
    signals: asyncio.Queue[signal.Signals],
    console: Console,
) -> int:
    ended = asyncio.create_task(runtime.wait_ended())
    first = asyncio.create_task(signals.get())
    await asyncio.wait((ended, first), return_when=asyncio.FIRST_COMPLETED)
    if not first.done():
        first.cancel()
        await runtime.stop()
        return EXIT_ENGINE_DEAD
    ended.cancel()
    waiting = runtime.hub.unfinished
    console.print(
        f"draining: {waiting} requests have {settings.drain_timeout:.0f} s to finish; "
        "once more to stop now"
    )
    drain = asyncio.create_task(runtime.drain(settings.drain_timeout))
    second = asyncio.create_task(signals.get())
    await asyncio.wait((drain, second), return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    if not drain.done():
        drain.cancel()
    elif not drain.result():
        log.warning("not all requests finished in time; they are cancelled")
    await runtime.stop()
    await _let_streams_end(runtime)
    return 0


async def _let_streams_end(runtime: Runtime) -> None:
    """Handlers write the last event of their streams before the sockets close."""
    deadline = time.monotonic() + 2.0
    while runtime.hub.open_readers and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)


def _finished_hook(plugins: Plugins) -> Callable[[RequestSummary], None]:
    hook = plugins.manager.hook.luce_request_finished
    return lambda summary: hook(summary=summary) and None


def build_runtime(
    settings: Settings,
    loaded: LoadedModel,
    metrics: Metrics,
    pacing: Pacing | None = None,
    arrivals: Arrivals | None = None,
) -> Runtime:
    return Runtime(
        loaded.engine,
        pool_blocks=loaded.pool.blocks,
        policy=build_policy(settings, pacing),
        max_queue=settings.max_queue,
        limits=StreamLimits(
            buffer_bytes=settings.reader_buffer_bytes,
            stalled_reader_s=settings.reader_timeout,
            ping_s=settings.ping_interval,
        ),
        observer=metrics,
        stall_timeout_s=settings.stall_timeout,
        arrivals=arrivals,
    )


def describe_model(
    settings: Settings, loaded: LoadedModel, plugins: Plugins, pacing: Pacing | None
) -> ServedModel:
    """What the routes tell of the model."""
    opened = loaded.opened
    gguf, capabilities = opened.gguf, loaded.engine.capabilities
    architecture = gguf.architecture
    warnings = []
    if settings.min_tokens:
        warnings.append(
            f"--min-tokens {settings.min_tokens}: no request stops earlier (for benchmarks)"
        )
    if settings.kv_pool_tokens and loaded.pool.tokens < capabilities.max_context:
        warnings.append(
            f"--kv-pool-tokens {settings.kv_pool_tokens} holds less than one context of "
            f"{capabilities.max_context} tokens: longer prompts are refused"
        )
    warnings += [failure.line for failure in plugins.failures]
    names = settings.model_name or (Path(gguf.path).stem,)
    return ServedModel(
        names=tuple(readable(name) for name in names),
        text=opened.text,
        max_context=capabilities.max_context,
        vocab_size=capabilities.vocab_size,
        created=int(time.time()),
        engine=opened.spec.name,
        device=str(opened.device),
        meta={
            "architecture": architecture,
            "n_params": sum(prod(tensor.shape) for tensor in gguf.tensors.values()),
            "n_ctx_train": gguf.metadata.int(f"{architecture}.context_length", 0),
            "n_vocab": capabilities.vocab_size,
            "size": gguf.total_bytes,
        },
        engine_facts=getattr(loaded.engine, "facts", {}),
        providers=provider_lines(loaded),
        modes=loaded.ops.modes,
        pool=loaded.pool.explain(),
        pacing=describe_pacing(settings, loaded, pacing),
        warnings=tuple(readable(warning) for warning in warnings),
    )


def provider_lines(loaded: LoadedModel) -> tuple[str, ...]:
    """One line per op: which providers it is bound to, and how often."""
    counts: dict[str, dict[str, int]] = {}
    for binding in loaded.ops.bound:
        providers = counts.setdefault(binding.op, {})
        providers[binding.provider] = providers.get(binding.provider, 0) + 1
    return tuple(
        f"{op}: " + ", ".join(f"{provider} x{count}" for provider, count in providers.items())
        for op, providers in sorted(counts.items())
    )


def start_screen(
    settings: Settings, loaded: LoadedModel, model: ServedModel, urls: tuple[str, ...]
) -> Table:
    """Model, engine, device, kernels, KV pool with its sum, slots and URL, on one screen."""
    gguf, capabilities = loaded.opened.gguf, loaded.engine.capabilities
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    size = f"{gguf.total_bytes / 1e6:.0f} MB, {model.meta['architecture']}"
    table.add_row("model", f"{', '.join(model.names)} ({size})")
    table.add_row("engine", f"{model.engine} on {model.device}")
    by_provider: dict[str, list[str]] = {}
    for binding in loaded.ops.bound:
        isa = f" ({binding.isa})" if binding.isa else ""
        names = by_provider.setdefault(binding.provider + isa, [])
        if binding.op not in names:
            names.append(binding.op)
    for provider, names in by_provider.items():
        table.add_row("kernels", f"{provider}: {', '.join(names)}")
    for mode in model.modes:
        table.add_row("steps", mode)
    cache = f"{settings.cache_type_k}/{settings.cache_type_v}"
    for number, line in enumerate(loaded.pool.explain().splitlines()):
        table.add_row(f"KV pool ({cache})" if number == 0 else "", line)
    table.add_row(
        "slots", f"{capabilities.max_slots}, context {capabilities.max_context} tokens each"
    )
    table.add_row("prefill rows beside decoders", model.pacing)
    table.add_row("template", loaded.opened.text.chat_format.source)
    for warning in (*model.warnings, *model.text.warnings):
        table.add_row(Text("warning", style="yellow"), warning)
    for url in urls:
        table.add_row("URL", f"{url}/v1")
    return table
