"""A kernel with everything but its arguments, made once and then only called."""

from __future__ import annotations

from typing import Any

import torch


class Launch:
    """A jit function with its constants and its compile options.

    Host functions make one per layer's facts and keep it in a `functools.cache`: a call then does
    nothing but hand over arguments. triton compiles at the first call and keeps the result, in the
    process and on disk.
    """

    __slots__ = ("_constants", "_kernel")

    def __init__(
        self,
        kernel: Any,
        *,
        warps: int = 4,
        stages: int = 1,
        exact: bool = False,
        **constants: Any,
    ) -> None:
        """`warps` waves per program; `stages` of a loop's loads in flight. `exact` keeps the
        compiler from contracting a product and a sum into one rounding, for results that must
        equal the reference's bits."""
        self._kernel = kernel
        self._constants = {
            **constants,
            "num_warps": warps,
            "num_stages": stages,
            "enable_fp_fusion": not exact,
        }

    def __call__(self, grid: tuple[int, ...], *args: Any) -> None:
        """Run on the device of the first argument, a tensor. A grid without programs runs none."""
        if 0 in grid:
            return
        device = args[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self._kernel.run(*args, grid=grid, warmup=False, **self._constants)
        else:
            self._kernel.run(*args, grid=grid, warmup=False, **self._constants)
