"""The Triton kernels against the references, over every case of every op, interpreted.

The interpreter takes milliseconds for a program, so of the ops that only some models need the
default run takes each case in one dtype, by turns; the other one, and the cases listed here, are
slow.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from luce_kernels_rocm.interpreter import register_interpreted
from luce_kernels_rocm.offer_tables import CHOSEN_OFFERS, MODEL_OFFERS

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.testing.op_parity import DTYPES, ParityCase, check_parity, parity_cases

CPU = Device.parse("cpu")
# Op and case, each of several seconds; another case of the op goes the same way in less.
LONG = frozenset(
    {
        ("candidate_select", "long block"),
        ("candidate_select", "Q4_K codebooks"),
        ("candidate_select", "Q6_K codebooks"),
        ("causal_conv1d", "long prompt"),
        ("compress_kv", "long prompt, 4"),
        ("compress_kv", "indexer"),
        ("compress_kv", "f32"),
        ("compress_kv", "f16"),
        ("compress_kv", "bf16"),
        ("gated_delta", "mixed step"),
        ("gated_delta", "long prompts in company"),
        ("gated_delta", "verify only"),
        ("window_attention", "long"),
        ("window_attention", "long, window only"),
        ("window_attention", "f32"),
        ("window_attention", "f16"),
        ("window_attention", "q8_0"),
        ("window_attention", "q4_0"),
        ("sparse_attention", "real head"),
    }
)
# Op and case that differ from another case of the default run in a count alone, or read a cache by
# the function that another one of the same type does.
REPEATED = frozenset(
    {
        ("index_topk", "f32"),  # few of many
        ("sparse_attention", "f32"),  # long
        ("window_attention", "bf16"),  # sparse_attention's
        ("window_write", "float16 143x512"),  # 16x64, and float32 143x512
        ("window_write", "bfloat16 143x512"),
        ("paged_attention", "cache f32"),  # mixed step
        ("paged_attention", "cache f16"),  # verify only and long prompt
    }
)
# Core ops that in float32 only repeat what float16 shows, or take the interpreter long.
FLOAT16_IS_ENOUGH = frozenset(
    {"add", "embedding_rows", "gather_rows", "kv_write", "paged_attention"}
)
# Experts' products in these types; the others are decoded by the same functions as in quant_matmul.
EXPERT_TYPES = ("F32", "F16", "Q4_K", "MXFP4", "Q6_K")

_registry = core_registry()
for _plugin, _module, _name in (
    ("luce_qwen_dflash2", "target_ops", "TARGET_OPS"),
    ("luce_qwen_dflash2", "draft_ops", "DRAFT_OPS"),
    ("luce_deepseek_v4", "model_ops", "MODEL_OPS"),
):
    if find_spec(_plugin) is not None:
        for _spec in getattr(import_module(f"{_plugin}.ops.{_module}"), _name):
            _registry.register_op(_spec)
register_interpreted(_registry.register_kernel)


def is_slow(parity: ParityCase) -> bool:
    op, case = parity.spec.name, parity.case
    if (op, case.name) in REPEATED:
        return True
    if op not in MODEL_OFFERS:
        return parity.dtype is torch.float32 and op in FLOAT16_IS_ENOUGH
    if parity.kernel.provider != "luce_kernels_rocm" and case.name != "decode only":
        return True
    is_long = (op, case.name) in LONG or case.facts.get("qtype", "F32") not in EXPERT_TYPES
    number = [other.name for other in parity.spec.cases()].index(case.name)
    return is_long or parity.dtype is not DTYPES[number % 2]


_providers = ("luce_kernels_rocm", *(provider for _, provider in CHOSEN_OFFERS))
_cases = [case for name in _providers for case in parity_cases(_registry, CPU, provider=name)]


@pytest.mark.parametrize(
    "parity",
    [
        pytest.param(case, id=case.id, marks=[pytest.mark.slow] if is_slow(case) else [])
        for case in _cases
    ],
)
def test_parity(parity: ParityCase) -> None:
    check_parity(parity, CPU)


def test_every_kernel_has_cases() -> None:
    covered = {case.spec.name for case in _cases}
    assert covered >= set(core_registry().specs)
