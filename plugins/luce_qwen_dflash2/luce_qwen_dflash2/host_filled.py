"""Small int32 tensors on the device that the host fills before a pass reads them."""

from __future__ import annotations

import torch


class HostFilled:
    """`tensor` [size] int32, zeros at first. On a CPU the host writes the tensor's own memory."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.tensor = torch.zeros(size, dtype=torch.int32, device=device)
        self._memory = self.tensor.numpy() if device.type == "cpu" else None

    def fill(self, values: list[int]) -> None:
        """The first values; those behind stay as they are."""
        if self._memory is None:
            self.tensor[: len(values)] = torch.tensor(values, dtype=torch.int32)
        else:
            self._memory[: len(values)] = values
