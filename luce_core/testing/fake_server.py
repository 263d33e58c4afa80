"""The real application on a real socket, around an engine without a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Self

from luce_core.runtime.hub import StreamLimits
from luce_core.runtime.runtime import Runtime
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.server.app import build_app
from luce_core.server.listen import HttpServer
from luce_core.server.metrics import Metrics, OnFinished
from luce_core.server.served_model import ServedModel
from luce_core.server.state import ServerState, Serving
from luce_core.settings import Settings
from luce_core.testing.byte_vocab import byte_metadata
from luce_core.testing.fake_engine import FakeEngine
from luce_core.testing.leak_check import leak_check
from luce_core.text.formats import ModelText, TextFormats
from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.typed_metadata import TypedMetadata

MODEL_NAME = "fake"


def byte_text(
    *,
    parser: str = "none",
    template: str | None = None,
    add_bos: bool = False,
    formats: TextFormats | None = None,
    architecture: str = "fake",
) -> ModelText:
    """Tokenizer, chat format and parsers of the byte vocabulary."""
    values = byte_metadata()
    values["general.architecture"] = architecture
    values["tokenizer.ggml.add_bos_token"] = add_bos
    if template is not None:
        values["tokenizer.chat_template"] = template
    metadata = TypedMetadata("fake.gguf", values)
    tokenizer = Tokenizer.from_metadata(metadata)
    return (formats or TextFormats()).for_model(metadata, tokenizer, output_parser=parser)


class FakeServer:
    """`async with FakeServer(engine, settings=...) as server:` serves at `server.url`.

    `settings` are fields of Settings; the port is free unless given, admission does not wait for
    company. Leaving the block stops everything; `check_leaks` waits until it is quiet and checks.
    """

    def __init__(
        self,
        engine: FakeEngine | None = None,
        *,
        text: ModelText | None = None,
        pool_blocks: int = 256,
        loaded: bool = True,
        names: tuple[str, ...] = (MODEL_NAME,),
        on_finished: Iterable[OnFinished] = (),
        policy: SchedulerPolicy | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.engine = engine or FakeEngine()
        self.settings = Settings.model_construct(**{**_defaults(), "port": 0, **(settings or {})})
        self.metrics = Metrics(on_finished)
        self.engine.allocate(pool_blocks)
        self.state = ServerState(self.settings)
        self.runtime = Runtime(
            self.engine,
            pool_blocks=pool_blocks,
            policy=policy or SchedulerPolicy(admission_coalesce_ms=0),
            max_queue=self.settings.max_queue,
            limits=StreamLimits(
                buffer_bytes=self.settings.reader_buffer_bytes,
                stalled_reader_s=self.settings.reader_timeout,
                ping_s=self.settings.ping_interval,
            ),
            observer=self.metrics,
            stall_timeout_s=self.settings.stall_timeout,
            arrivals=self.state.arrivals,
        )
        capabilities = self.engine.capabilities
        self.model = ServedModel(
            names=names,
            text=text or byte_text(),
            max_context=capabilities.max_context,
            vocab_size=capabilities.vocab_size,
            created=int(time.time()),
            engine="fake",
        )
        self._loaded = loaded
        self._http = HttpServer(build_app(self.state), self.settings)

    @property
    def url(self) -> str:
        return self._http.urls[0]

    @property
    def urls(self) -> tuple[str, ...]:
        return self._http.urls

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def load(self) -> None:
        """What the end of loading does."""
        self.state.serving = Serving(self.runtime, self.model, self.metrics)

    async def __aenter__(self) -> Self:
        await self.runtime.start()
        if self._loaded:
            self.load()
        await self._http.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.engine.release()
        await self.runtime.stop()
        await self._http.close()

    async def quiet(self, timeout_s: float = 10.0) -> None:
        """Return once every accepted request has ended; TimeoutError if that does not happen."""
        deadline = time.monotonic() + timeout_s
        hub = self.runtime.hub
        while hub.unfinished or hub.unread_bytes or self.runtime.loop.working:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{hub.unfinished} requests have not ended")
            await asyncio.sleep(0.005)

    async def check_leaks(self) -> None:
        """Wait until everything has ended, then AssertionError for anything that was kept."""
        await self.quiet()
        leak_check(self.runtime.scheduler, hub=self.runtime.hub, engine=self.engine)


def _defaults() -> dict[str, Any]:
    fields = Settings.model_fields
    return {name: field.default for name, field in fields.items()} | {"model": "fake.gguf"}
