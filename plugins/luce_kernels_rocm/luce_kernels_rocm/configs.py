"""Tile sizes and waves per kernel: looked up when a layer makes its launches, never measured while
serving. A configuration depends on the layer's constants and the architecture, not on the batch.
"""

from __future__ import annotations

ROW_VALUES_PER_WAVE = 512


def warps_for(values: int) -> int:
    """Waves of a program that holds a row of so many values: 16 values a lane, at most 8 waves."""
    return max(1, min(8, values // ROW_VALUES_PER_WAVE))
