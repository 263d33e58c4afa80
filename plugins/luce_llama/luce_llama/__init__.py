"""The luce plugin for dense GGUF models. Light: heavy modules load when a model is built."""

from __future__ import annotations

from collections.abc import Callable

from luce_core.engine import EngineSpec, LoadContext, SeqEngine, hookimpl

ARCHITECTURES = ("llama", "qwen2", "qwen3")


def build(context: LoadContext) -> SeqEngine:
    """Load the model of the context's file."""
    from luce_llama.engine import LlamaEngine  # torch: only once a model is wanted

    return LlamaEngine.load(context)


@hookimpl
def luce_register_engines(register: Callable[[EngineSpec], None]) -> None:
    register(
        EngineSpec(
            name="llama",
            architectures=ARCHITECTURES,
            build=build,
            accepts=frozenset({"cache_type_k", "cache_type_v"}),
        )
    )
