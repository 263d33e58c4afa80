"""What the host has: memory and cores, as affinity and cgroup limits leave them."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def _read_int(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.isdigit() else None


def available_bytes(root: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """min(MemAvailable, what the cgroup leaves); v2 and v1 files, as the kernel documents them."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        pass
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = _read_int(root / limit_name), _read_int(root / used_name)
        if limit is not None and used is not None:
            available = min(available, max(0, limit - used))
    return available


def usable_cores(root: Path = _CGROUP) -> int:
    """Cores that affinity and the cgroup CPU quota give this process, at least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "cpu.max").read_text().split()
        if quota.isdigit():
            cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, cores)
