"""An op that the host does in the middle of a step, between what a provider replays."""

from __future__ import annotations

from collections.abc import Callable

import torch

from luce_core.ops.bound import BoundOp
from luce_core.ops.kernel import Kernel
from luce_core.ops.spec import ArgSpec, OpSpec, OutSpec

HOST = "host"


def host_op(
    name: str,
    fn: Callable[..., None],
    *,
    args: tuple[ArgSpec, ...],
    out: OutSpec,
    device: torch.device,
    dtype: torch.dtype,
) -> BoundOp:
    """`fn(*args, out)` as an op that is recorded with the ops around it.

    It gets tensors and fills `out`; it may run other ops, wait for another device and decide by
    what the rows hold. A provider replays what comes before it, has it called on the thread of the
    step, and goes on; one that cannot stop in the middle of a step refuses the recording. It is in
    no registry: it belongs to the model that makes it.
    """
    spec = OpSpec(name=name, doc="", args=args, out=out, reference=fn, cases=tuple)
    kernel = Kernel(op=name, fn=fn, provider=HOST)
    return BoundOp(spec, kernel, facts={}, weights=(), device=device, dtype=dtype)
