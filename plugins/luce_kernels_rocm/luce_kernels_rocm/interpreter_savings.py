"""What triton's interpreter does again and again, done once: half of its time, and nothing else.

An interpreter that is made otherwise is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any


def save(interpreter: Any) -> None:
    """Of the module `triton.runtime.interpreter`, before it runs anything."""
    names = ("_patch_lang", "_get_np_dtype", "GridExecutor", "interpreter_builder")
    if all(hasattr(interpreter, name) for name in names):
        _patch_once_in_a_launch(interpreter)
        _keep_dtypes(interpreter)
        _drop_sums_that_nobody_reads(interpreter.interpreter_builder)


def _patch_once_in_a_launch(interpreter: Any) -> None:
    """A launch replaces functions of triton's language until it ends. Each call of a function on
    the way, thousands in a launch, replaces them by the same again."""
    patch: Callable[[Any], Any] = interpreter._patch_lang
    execute: Callable[..., None] = interpreter.GridExecutor.__call__
    patched: set[frozenset[int]] = set()

    @cache
    def languages(function: Any) -> frozenset[int]:
        """The modules of the language that a function sees."""
        seen = (interpreter.tl, interpreter.tl.core)
        names = function.__globals__.values()
        return frozenset(id(module) for module in seen if any(each is module for each in names))

    def patch_once(function: Any) -> Any:
        which = languages(function)
        if which in patched:
            return None
        patched.add(which)
        return patch(function)

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        # The launch itself patches first, and restores what it has patched.
        patched.clear()
        execute(self, *args, **kwargs)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch


def _keep_dtypes(interpreter: Any) -> None:
    """numpy's dtype of a scalar type, for which a table is made at each question."""
    find: Callable[[Any], Any] = interpreter._get_np_dtype
    block, pointer = interpreter.tl.block_type, interpreter.tl.pointer_type
    of_scalar = cache(find)

    def find_kept(dtype: Any) -> Any:
        if isinstance(dtype, block):
            dtype = dtype.element_ty
        return find(dtype) if isinstance(dtype, pointer) else of_scalar(dtype)

    interpreter._get_np_dtype = find_kept


def _drop_sums_that_nobody_reads(builder: Any) -> None:
    """Without `debug` an assertion on the device is none, so that what is computed in int64 for
    one is thrown away."""
    if hasattr(builder.options, "sanitize_overflow") and not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)
