"""The plugin: one hook, which offers one engine. Light, since every `luce` command imports it."""

from __future__ import annotations

from collections.abc import Callable

from luce_core.engine import EngineSpec, LoadContext, SeqEngine, hookimpl


def build(context: LoadContext) -> SeqEngine:
    from minimal_engine.engine import MinimalEngine  # torch: only once a model is wanted

    return MinimalEngine(context)


@hookimpl
def luce_register_engines(register: Callable[[EngineSpec], None]) -> None:
    register(EngineSpec(name="minimal", architectures=("minimal",), build=build))
