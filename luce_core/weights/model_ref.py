"""From what a user writes after `luce serve` to a file: a path, a folder, or `pkg:package/file`."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path, PurePosixPath

from luce_core.errors import ConfigError, ModelFileError
from luce_core.weights.split_files import single_model

PACKAGE_PREFIX = "pkg:"
_PACKAGE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def resolve_model(ref: str) -> Path:
    """The model file that `ref` names; upper and lower case count.

    A folder must hold one model (of one or several files). `pkg:package/file` is a file inside an
    installed Python package, which is found but not imported. Raises ConfigError for a reference
    that cannot be understood and ModelFileError for a file that is not there.
    """
    if ref.startswith(PACKAGE_PREFIX):
        return _in_package(ref)
    # The functions of os.path answer where those of Path raise: no such home, a name too long.
    path = Path(os.path.expanduser(ref))
    if os.path.isdir(path):
        return single_model(path)
    if not os.path.exists(path):
        raise ModelFileError(path, "file", f"does not exist{_similar(path)}")
    return path


def _in_package(ref: str) -> Path:
    package, _, inner = ref.removeprefix(PACKAGE_PREFIX).partition("/")
    # A backslash or a drive would be a path of its own on some systems.
    parts = PurePosixPath(inner).parts
    unsafe = inner.startswith("/") or ".." in parts or "\\" in inner or ":" in inner
    if not _PACKAGE_NAME.fullmatch(package) or unsafe:
        raise ConfigError(
            f"model {ref!r}: must be {PACKAGE_PREFIX}PACKAGE/FILE, with FILE inside the package"
        )
    root = _package_folder(ref, package.replace("-", "_"))
    path = root.joinpath(*parts)
    if path.is_dir():
        return single_model(path)
    if not path.is_file():
        held = sorted(each.name for each in root.glob("*.gguf"))
        listed = ", ".join(held) if held else "no .gguf file"
        raise ModelFileError(path, "file", f"does not exist; package {package!r} holds {listed}")
    return path


def _package_folder(ref: str, package: str) -> Path:
    try:
        # For a top-level name this searches the path and runs no code of the package.
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        command = f"pip install {package.replace('_', '-')}"
        raise ConfigError(f"model {ref!r}: package {package!r} is not installed; try `{command}`")
    return Path(folders[0])


def _similar(path: Path) -> str:
    """A hint for a name that differs in case only."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return f": there is no folder {path.parent}"
    near = [name for name in names if name.lower() == path.name.lower()]
    return f"; did you mean {near[0]}?" if near else ""
