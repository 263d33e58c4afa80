"""The ops that are one record each, by family."""

from __future__ import annotations

from luce_kernels_cpu.block_ops import BLOCK_OPS
from luce_kernels_cpu.candidate_ops import CANDIDATE_OPS
from luce_kernels_cpu.deepseek_ops import DEEPSEEK_OPS
from luce_kernels_cpu.gate_ops import GATE_OPS
from luce_kernels_cpu.moe_ops import MOE_OPS
from luce_kernels_cpu.state_ops import STATE_OPS

NATIVE_OPS = (*STATE_OPS, *GATE_OPS, *BLOCK_OPS, *CANDIDATE_OPS, *MOE_OPS, *DEEPSEEK_OPS)
