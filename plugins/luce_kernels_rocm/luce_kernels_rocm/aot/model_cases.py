"""Ops that only some models need: their kernels are called directly, as the ops belong to plugins
that need not be there."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from luce_kernels_rocm.aot.cases import AotCase
from luce_kernels_rocm.aot.deepseek_cases import deepseek_calls
from luce_kernels_rocm.aot.draft_cases import draft_calls
from luce_kernels_rocm.aot.expert_cases import expert_calls
from luce_kernels_rocm.aot.state_cases import state_calls

_CALLS = (expert_calls, state_calls, deepseek_calls, draft_calls)


def model_cases(dtype: torch.dtype, short: str, is_first: bool) -> Iterator[AotCase]:
    for calls in _CALLS:
        for name, call, critical in calls(dtype):
            yield AotCase(f"{name} {short}", call, critical and is_first)
