"""What a compiled kernel takes, read from its machine code."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from luce_core.errors import LuceError

_AMD_MATRIX = re.compile(r"^\s+(v_(?:s?wmmac?|mfma|swmmac)_\w+)", re.MULTILINE)
_PTX_MATRIX = re.compile(r"^\s+((?:mma|wgmma)\.\S+)", re.MULTILINE)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """One kernel on one architecture. `registers` are per lane, `lds_bytes` per work group.

    `spills` are registers that the compiler keeps in memory (on CUDA: bytes of local memory),
    `scratch_bytes` what a lane has of it, `scalar_spills` scalar registers that it keeps in vector
    registers. `matrix` counts matrix instructions by name.
    """

    case: str
    kernel: str
    arch: str
    warps: int
    registers: int
    lds_bytes: int
    spills: int
    scalar_spills: int
    scratch_bytes: int
    matrix: Mapping[str, int]
    seconds: float

    @property
    def row(self) -> str:
        """A line of the report for people."""
        matrix = ", ".join(f"{count} {name}" for name, count in self.matrix.items()) or "-"
        return (
            f"{self.arch:8} {self.case:44} {self.kernel:26} {self.warps:2} waves "
            f"{self.registers:4} registers {self.lds_bytes:6} LDS {self.spills:3} spilled "
            f"{self.scratch_bytes:4} scratch  {matrix}"
        )

    @property
    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def amdgcn_figures(text: str) -> dict[str, Any]:
    """Figures of `KernelReport` from AMD assembly, which ends with the code object's metadata."""
    return {
        "registers": _number(text, ".vgpr_count:"),
        "spills": _number(text, ".vgpr_spill_count:"),
        "scalar_spills": _number(text, ".sgpr_spill_count:"),
        "scratch_bytes": _number(text, ".private_segment_fixed_size:"),
        "matrix": dict(Counter(_AMD_MATRIX.findall(text))),
    }


def _number(text: str, key: str) -> int:
    found = re.search(rf"{re.escape(key)}\s+(\d+)", text)
    if found is None:
        raise LuceError(f"the assembly does not say {key}")
    return int(found[1])


def ptx_figures(text: str, resources: str) -> dict[str, Any]:
    """Figures of `KernelReport` from PTX and what `cuobjdump --dump-resource-usage` prints."""
    found = _RESOURCES.search(resources)
    if found is None:
        raise LuceError(f"cuobjdump said {resources!r}, not REG STACK SHARED LOCAL")
    registers, stack, _, local = map(int, found.groups())
    return {
        "registers": registers,
        "spills": stack + local,
        "scalar_spills": 0,
        "scratch_bytes": stack + local,
        "matrix": dict(Counter(_PTX_MATRIX.findall(text))),
    }


def figures_of(files: Mapping[str, str], cuobjdump: str) -> dict[str, Any]:
    """From the files that triton has written for a kernel: name -> path."""
    by_kind = {Path(path).suffix[1:]: Path(path) for path in files.values()}
    if "amdgcn" in by_kind:
        return amdgcn_figures(by_kind["amdgcn"].read_text())
    done = subprocess.run(
        [cuobjdump, "--dump-resource-usage", str(by_kind["cubin"])],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ptx_figures(by_kind["ptx"].read_text(), done.stdout)
