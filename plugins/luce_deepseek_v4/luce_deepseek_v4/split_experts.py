"""The routed experts of a layer on two devices: picks split by owner, joined once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from luce_core.ops.host_op import host_op
from luce_core.ops.registry import OpBinder
from luce_core.ops.spec import ArgKind, ArgSpec, OutSpec, Rows
from luce_deepseek_v4.link import Link
from luce_deepseek_v4.owned_experts import OwnedExperts
from luce_deepseek_v4.picks import Owner, Picks


class FarThread:
    """Runs the far device's part of a layer while the engine's thread runs the near one's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(1, "luce-experts", self._begin)

    def submit(self, work: Callable[..., Tensor], *args: Tensor) -> Future[Tensor]:
        return self._pool.submit(self._run, work, args)

    def close(self) -> None:
        """Idempotent."""
        self._pool.shutdown()

    def _begin(self) -> None:
        if self._device.type != "cpu":
            torch.cuda.set_device(self._device)

    @staticmethod
    def _run(work: Callable[..., Tensor], args: Sequence[Tensor]) -> Tensor:
        with torch.inference_mode():
            return work(*args)


@dataclass(frozen=True, slots=True)
class Side:
    """One device's part in a layer: how it binds, what it owns, and what runs that.

    `experts` is None for a side that owns none of the layer's.
    """

    ops: OpBinder
    owner: Owner
    experts: OwnedExperts | None


class SplitExperts:
    """All routed experts of a layer, on two devices.

    Rows without a far pick never leave the near device. What comes back is every far pick's
    output, since the sum of a row goes over all of its picks in the order of the route, as on one
    device: sums by owner, joined, would round otherwise, and kernels that round activations to
    int8 make of that another text.
    """

    def __init__(self, near: Side, far: Side, link: Link, thread: FarThread) -> None:
        self._near, self._far = near, far
        self._link = link
        self._thread = thread
        # Between what is replayed before it and after it: the host reads the route.
        self._outputs = host_op(
            "routed_experts",
            self._run,
            args=_ARGS,
            out=OutSpec(Rows.TOKENS, _picks_shape),
            device=near.ops.device,
            dtype=near.ops.dtype,
        )
        self._sum = near.ops.bind("moe_sum")

    def __call__(self, x: Tensor, route: Tensor) -> Tensor:
        out: Tensor = self._sum(self._outputs(x, route), route)
        return out

    def _run(self, x: Tensor, route: Tensor, out: Tensor) -> None:
        """Every pick's output, in the order of the route."""
        host = self._link.to_host(route)
        far, near = self._far.owner.picks(host), self._near.owner.picks(host)
        started = self._start(x, far) if far.count else None
        outputs = out.view(-1, x.shape[1])
        if near.count:
            assert self._near.experts is not None
            wanted, experts, slots = self._given(
                self._near, near.rows[near.sources], near.experts, near.slots
            )
            outputs[slots] = self._near.experts.outputs(x[wanted], experts)
        if started is not None:
            (slots,) = self._given(self._near, far.slots)
            outputs[slots] = self._link.rows(started.result(), None, self._near.ops)

    def _start(self, x: Tensor, picks: Picks) -> Future[Tensor]:
        """Hand the far device its picks: if copies are batched each row once, else for each pick.
        Its answer is an output for each pick."""
        far, experts = self._far, self._far.experts
        assert experts is not None
        if not self._link.batched:
            (numbers,) = self._given(far, picks.experts)
            rows = self._link.rows(x, picks.rows[picks.sources], far.ops)
            return self._thread.submit(experts.outputs, rows, numbers)
        (wanted,) = self._given(self._near, picks.rows)
        rows = self._link.rows(x, wanted, far.ops)

        def outputs(sources: Tensor, numbers: Tensor) -> Tensor:
            return experts.outputs(rows[sources], numbers)

        return self._thread.submit(outputs, *self._given(far, picks.sources, picks.experts))

    def _given(self, side: Side, *made: Tensor) -> tuple[Tensor, ...]:
        """What the host has made, on the side's device."""
        return tuple(self._link.from_host(each, side.ops.device) for each in made)


_ARGS = (
    ArgSpec("x", ArgKind.ACTIVATION, ("T", "width"), Rows.TOKENS),
    ArgSpec("route", ArgKind.ACTIVATION, ("T", "2", "top_k"), Rows.TOKENS),
)


def _picks_shape(x: Tensor, route: Tensor) -> tuple[int, ...]:
    return (x.shape[0], route.shape[2], x.shape[1])
