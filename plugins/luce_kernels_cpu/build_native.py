"""Compiles csrc/ into one shared library: by pip through setup.py, or `python build_native.py`.

A source that opens a namespace LK_ISA_NS holds kernels; it is compiled once per instruction set,
each time into another namespace. Other sources are compiled once, for any x86-64. Objects are
kept in build/ under a hash of everything that goes into them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "csrc"
PACKAGE = HERE / "luce_kernels_cpu"
LIBRARY = "_native.so"
# Why there is no library, for the message at import.
NOTE = "_not_built.txt"

_COMMON = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-pthread"),
    *("-fvisibility=hidden", "-fvisibility-inlines-hidden", "-Wall", "-Wextra"),
    # gcc 12 says it of its own AVX-512 header (bug 105593).
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
# Namespace of the kernels -> flags.
_ISAS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_vnni": (*_AVX512, "-mavx512vnni"),
}
# Where the compiler knows it, and only for what gains by it: sources that include this header.
_AMX = (
    *(*_AVX512, "-mavx512vnni", "-mavx512bf16", "-mavx512fp16"),
    *("-mamx-tile", "-mamx-int8", "-mamx-bf16"),
)
_AMX_HEADER = "amx.h"
_WITH_AMX = "-DLK_WITH_AMX"
_MOST_LINES = 12  # of a compiler's complaint, in a message
# A kernel that is declared and nowhere defined is an error of the build, not of the first call.
_LINK = ("-shared", "-pthread", "-Wl,--no-undefined")
_SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")
_VARIANT = re.compile(r"^namespace (\w+::)*LK_ISA_NS\b", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class BuildError(Exception):
    """The library cannot be built here; says why in one line, then what the compiler said."""


class Unit(NamedTuple):
    """One compiler run."""

    source: Path
    flags: tuple[str, ...]


def build(target: Path, *, sanitize: bool = False, jobs: int | None = None) -> Path:
    """Compile what has changed and link `target`. Raises BuildError."""
    compiler = find_compiler()
    version = _run([compiler, "--version"]).splitlines()[0]
    extra = _SANITIZE if sanitize else ()
    extra += (_WITH_AMX,) if _knows_amx(compiler) else ()
    objects = HERE / "build" / ("objects-sanitize" if sanitize else "objects")
    objects.mkdir(parents=True, exist_ok=True)
    units = list(_units(extra))
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        built = list(pool.map(lambda unit: _compile(compiler, version, unit, objects), units))
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    _run([compiler, *extra, *_LINK, *map(str, sorted(set(built))), "-o", str(fresh)])
    # A process that has the old file loaded keeps it.
    fresh.replace(target)
    for stale in set(objects.glob("*.o")) - set(built):
        stale.unlink(missing_ok=True)
    return target


def find_compiler() -> str:
    """$CXX, else g++, clang++ or c++. BuildError where there is none, or no x86-64."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        here = f"{sys.platform} on {platform.machine()}"
        raise BuildError(f"the kernels are for Linux on x86-64, this is {here}")
    wanted = os.environ.get("CXX", "").split()
    for name in (*wanted[:1], "g++", "clang++", "c++"):
        found = shutil.which(name)
        if found:
            return found
    raise BuildError("no C++ compiler was found (g++, clang++ or $CXX); on Debian: apt install g++")


def _units(extra: tuple[str, ...]) -> Iterator[Unit]:
    for source in sorted(SOURCES.glob("*.cpp")):
        if not _VARIANT.search(source.read_text()):
            yield Unit(source, (*_COMMON, *extra))
            continue
        for name, flags in _ISAS.items():
            yield Unit(source, (*_COMMON, *extra, *flags, f"-DLK_ISA_NS={name}"))
        if _WITH_AMX in extra and SOURCES / _AMX_HEADER in _closure(source):
            yield Unit(source, (*_COMMON, *extra, *_AMX, "-DLK_ISA_NS=amx"))


def _knows_amx(compiler: str) -> bool:
    try:
        _run([compiler, *_AMX, "-x", "c++", "-E", "-o", os.devnull, os.devnull])
    except BuildError:
        return False
    return True


def _compile(compiler: str, version: str, unit: Unit, objects: Path) -> Path:
    digest = hashlib.sha256("\0".join((compiler, version, *unit.flags)).encode())
    for file in _closure(unit.source):
        digest.update(file.read_bytes())
    made = objects / f"{unit.source.stem}-{digest.hexdigest()[:24]}.o"
    if not made.exists():
        fresh = made.with_suffix(f".{os.getpid()}")
        _run([compiler, *unit.flags, "-c", str(unit.source), "-o", str(fresh)])
        fresh.replace(made)
    return made


def _closure(source: Path) -> list[Path]:
    """The file and what it includes from csrc/, in a fixed order."""
    found: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        file = waiting.pop()
        if file in found or not file.exists():
            continue
        found[file] = None
        waiting += [file.parent / name for name in _INCLUDE.findall(file.read_text())]
    return sorted(found)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[:_MOST_LINES])
        raise BuildError(f"{Path(command[0]).name} failed\n{' '.join(command)}\n{said}")
    if done.stderr.strip():
        print(done.stderr.strip(), file=sys.stderr)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sanitize", action="store_true", help="with ASan and UBSan")
    parser.add_argument("--output", type=Path, help="default: beside the Python package's code")
    options = parser.parse_args()
    default = HERE / "build" / "sanitize" / LIBRARY if options.sanitize else PACKAGE / LIBRARY
    try:
        print(build(options.output or default, sanitize=options.sanitize))
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
