"""The luce plugin for hybrid Qwen GGUF models. Light: heavy modules load when they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from luce_core.engine import EngineSpec, LoadContext, SeqEngine, hookimpl

if TYPE_CHECKING:
    from luce_core.ops.spec import OpSpec

ARCHITECTURES = ("qwen35", "qwen35moe")
ACCEPTS = frozenset(
    {
        "cache_type_k",
        "cache_type_v",
        "draft",
        "draft_device",
        "draft_block_size",
        "draft_min_acceptance",
    }
)


def build(context: LoadContext) -> SeqEngine:
    """Load the model of the context's file."""
    from luce_qwen_dflash2.engine import QwenEngine  # torch: only once a model is wanted

    return QwenEngine.load(context)


@hookimpl
def luce_register_engines(register: Callable[[EngineSpec], None]) -> None:
    register(
        EngineSpec(
            name="qwen_dflash2",
            architectures=ARCHITECTURES,
            build=build,
            accepts=ACCEPTS,
        )
    )


@hookimpl
def luce_register_ops(register: Callable[[OpSpec], None]) -> None:
    from luce_qwen_dflash2.ops.draft_ops import DRAFT_OPS
    from luce_qwen_dflash2.ops.target_ops import TARGET_OPS

    for spec in (*TARGET_OPS, *DRAFT_OPS):
        register(spec)


@hookimpl
def luce_register_text_formats(register: Callable[..., None]) -> None:
    from luce_qwen_dflash2.text import register_text_formats

    register_text_formats(register)
