"""Copies between devices are counted as they are made, and go by way of the host unless direct."""

from __future__ import annotations

import pytest
import torch
from luce_deepseek_v4.link import Link, copies_directly

from luce_core.device import Device
from luce_core.errors import ConfigError


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_rows_arrive_and_are_counted(batched, direct, ops_registry) -> None:
    to = ops_registry().binder(Device("cpu"), torch.float32)
    source, link = torch.randn(5, 8).half(), Link(batched=batched, direct=direct)
    hops = 1 if direct else 2
    got = link.rows(source, torch.tensor([4, 0, 4]), to)
    assert torch.equal(got, source[[4, 0, 4]].float())
    assert link.copies == hops * (1 if batched else 3)
    everything = link.rows(source, None, to)
    assert torch.equal(everything, source.float())
    assert link.copies == hops * (2 if batched else 8)
    source.zero_()
    assert got.abs().sum() > 0 < everything.abs().sum()


def test_two_gpus_copy_directly_only_if_asked_and_able(monkeypatch) -> None:
    first, second, cpu = Device("hip", 0), Device("hip", 1), Device("cpu")
    able = {(0, 1): True, (1, 0): True}
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: able[a, b])
    assert copies_directly(first, second, peer_access=True)
    assert not copies_directly(first, second, peer_access=False)
    assert copies_directly(first, cpu, peer_access=False)
    assert copies_directly(cpu, cpu, peer_access=True)
    able[1, 0] = False
    with pytest.raises(ConfigError, match="--peer-access: hip:0 and hip:1 cannot copy directly"):
        copies_directly(first, second, peer_access=True)
    with pytest.raises(ConfigError, match="--peer-access: hip:0 and cpu cannot copy directly"):
        copies_directly(first, cpu, peer_access=True)
