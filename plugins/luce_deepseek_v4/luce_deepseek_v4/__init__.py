"""The luce plugin for DeepSeek V4 GGUF models. Light: heavy modules load when they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from luce_core.engine import hookimpl

if TYPE_CHECKING:
    from luce_core.ops.spec import OpSpec


@hookimpl
def luce_register_ops(register: Callable[[OpSpec], None]) -> None:
    from luce_deepseek_v4.ops.model_ops import MODEL_OPS  # torch: only once ops are wanted

    for spec in MODEL_OPS:
        register(spec)


@hookimpl
def luce_register_text_formats(register: Callable[..., None]) -> None:
    from luce_deepseek_v4.text import register_text_formats

    register_text_formats(register)
