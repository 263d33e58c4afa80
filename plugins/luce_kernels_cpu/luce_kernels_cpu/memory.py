"""Where the values of a step lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luce_kernels_cpu import structs
from luce_kernels_cpu.graph import QuantizedValue, Record, View
from luce_kernels_cpu.schedule import Stored
from luce_kernels_cpu.views import NO_QUANTIZED, quantized_at


@dataclass(frozen=True, slots=True)
class Memory:
    """Addresses: of the arena's values, of what the workers share within a record, which is made
    for so many logit rows, and of what those of a record count in."""

    arena: int
    offsets: Mapping[Stored, int]
    partials: int
    partials_bytes: int
    logits: int
    counters: Mapping[Record, int]

    def rows(self, view: View) -> structs.Rows:
        """Without an address where the int8 form is all that there is."""
        value = view.value
        offset = self.offsets.get(value)
        start = None if offset is None else self.arena + offset + 4 * view.offset
        return structs.Rows(start, value.stride, view.width, value.domain, 0)

    def quantized(self, value: QuantizedValue | None) -> structs.Quantized:
        if value is None:
            return NO_QUANTIZED
        return quantized_at(self.arena + self.offsets[value], value.max_rows, value.k, value.block)
