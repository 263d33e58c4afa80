"""The luce plugin for DeepSeek V4 GGUF models. Light: heavy modules load when they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from luce_core.engine import EngineSpec, LoadContext, SeqEngine, hookimpl
from luce_deepseek_v4.settings import DeepSeekSettings

if TYPE_CHECKING:
    from luce_core.ops.spec import OpSpec

ARCHITECTURES = ("deepseek4",)


def build(context: LoadContext) -> SeqEngine:
    """Load the model of the context's file."""
    from luce_deepseek_v4.engine import DeepSeekEngine  # torch: only once a model is wanted

    return DeepSeekEngine.load(context)


@hookimpl
def luce_register_engines(register: Callable[[EngineSpec], None]) -> None:
    register(
        EngineSpec(
            name="deepseek_v4",
            architectures=ARCHITECTURES,
            build=build,
            settings=DeepSeekSettings,
            accepts=frozenset({"cache_type_k", "cache_type_v", "peer_access"}),
        )
    )


@hookimpl
def luce_register_ops(register: Callable[[OpSpec], None]) -> None:
    from luce_deepseek_v4.ops.model_ops import MODEL_OPS  # torch: only once ops are wanted

    for spec in MODEL_OPS:
        register(spec)


@hookimpl
def luce_register_text_formats(register: Callable[..., None]) -> None:
    from luce_deepseek_v4.text import register_text_formats

    register_text_formats(register)
