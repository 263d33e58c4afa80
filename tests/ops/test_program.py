from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from luce_core.device import Device
from luce_core.errors import PluginError
from luce_core.ops.core_ops import core_registry
from luce_core.ops.record import ReferenceRecorder
from luce_core.ops.registry import OpRegistry

SIZES = {"max_rows": 4, "max_logits": 2, "max_segments": 2, "max_blocks": 1}


def program(registry: OpRegistry, forward):
    return registry.binder(Device("cpu"), torch.float32).program(forward, **SIZES)


def test_without_a_recorder_steps_run_op_by_op_and_say_so() -> None:
    made = program(core_registry(), lambda batch: batch)
    assert made.mode == "op by op: no provider replays recordings on this device"


def test_what_cannot_be_recorded_runs_op_by_op_and_names_the_op() -> None:
    registry = core_registry()
    registry.register_recorder(ReferenceRecorder().compile, provider="tape", device="cpu")

    def forward(batch):
        return batch.token_ids + 1

    made = program(registry, forward)
    out = made.run(SimpleNamespace(token_ids=torch.tensor([4])))
    assert out.tolist() == [5]
    assert out.is_inference()
    assert made.mode.startswith("op by op: tape: cannot record")
    assert "arithmetic" in made.mode


def test_a_recorder_of_another_device_is_not_asked() -> None:
    registry = core_registry()
    registry.register_recorder(ReferenceRecorder().compile, provider="graphs", device="cuda")
    assert "no provider" in program(registry, lambda batch: batch).mode
    with pytest.raises(PluginError, match="tpu"):
        registry.register_recorder(ReferenceRecorder().compile, provider="x", device="tpu")
