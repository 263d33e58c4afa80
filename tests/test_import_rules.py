"""Which part may import which, and that the command line answers before torch is loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "luce_core"
PLUGIN_PACKAGES = [
    path.parent / path.parent.name for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))
] + [ROOT / "examples/minimal_engine/minimal_engine"]
SHIPPED = [*CORE.rglob("*.py"), *(f for folder in PLUGIN_PACKAGES for f in folder.rglob("*.py"))]

TORCH_FREE = ("kv", "scheduler", "runtime", "server", "plan.py", "request.py")
# The contract, which imports neither torch nor a model file reader, and what stands on it.
OPEN_TO_PLUGINS = (
    "luce_core.engine",
    "luce_core.plan",
    "luce_core.request",
    "luce_core.errors",
    "luce_core.device",
    "luce_core.hookspecs",
    "luce_core.kv.block_table",
    "luce_core.kv.slot_table",
    "luce_core.ops",
    "luce_core.batch",
    "luce_core.sampling",
    "luce_core.weights",
    "luce_core.text",
    "luce_core.testing",
)


def files_of(part: str) -> list[Path]:
    path = CORE / part
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, functions and type checking included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide what is imported"
            assert node.module is not None
            yield node.module
            # `from luce_core import kv` imports the module kv.
            yield from (f"{node.module}.{n.name}" for n in node.names if node.module == "luce_core")


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def loaded_after(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after running `code`."""
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("part", TORCH_FREE)
def test_no_file_of_a_torch_free_part_names_torch(part: str) -> None:
    for path in files_of(part):
        assert not [name for name in imports_of(path) if is_in(name, ("torch",))], path


@pytest.mark.parametrize("part", TORCH_FREE)
def test_importing_a_torch_free_part_loads_no_torch(part: str) -> None:
    names = [module_name(path) for path in files_of(part)]
    assert "torch" not in loaded_after("\n".join(f"import {name}" for name in names))


def test_the_contract_for_plugins_loads_no_torch() -> None:
    contract = OPEN_TO_PLUGINS[: OPEN_TO_PLUGINS.index("luce_core.ops")]
    assert "torch" not in loaded_after("\n".join(f"import {name}" for name in contract))


def test_the_scheduler_knows_neither_server_nor_text_nor_ops() -> None:
    foreign = ("luce_core.server", "luce_core.text", "luce_core.ops")
    files = files_of("scheduler")
    for path in files:
        assert not [name for name in imports_of(path) if is_in(name, foreign)], path
    loaded = loaded_after("\n".join(f"import {module_name(path)}" for path in files))
    assert not [name for name in loaded if is_in(name, foreign)]


@pytest.mark.parametrize("folder", PLUGIN_PACKAGES, ids=lambda folder: folder.name)
def test_a_plugin_imports_only_what_the_core_offers_to_plugins(folder: Path) -> None:
    files = sorted(folder.rglob("*.py"))
    assert files
    for path in files:
        ours = [name for name in imports_of(path) if is_in(name, ("luce_core",))]
        assert not [name for name in ours if not is_in(name, OPEN_TO_PLUGINS)], path


@pytest.mark.parametrize("words", [["--help"], ["version"], ["serve", "--help"]], ids=" ".join)
def test_the_command_line_answers_without_torch(words: list[str]) -> None:
    """With every installed plugin loaded, as far as the command needs plugins."""
    code = (
        "from luce_core.cli import main\n"
        f"try: main({words!r})\n"
        "except SystemExit as done: assert done.code == 0"
    )
    assert "torch" not in loaded_after(code)


def test_help_answers_in_less_than_300_ms() -> None:
    def seconds() -> float:
        started = time.perf_counter()
        command = [sys.executable, "-c", "from luce_core.cli import main; main(['--help'])"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return time.perf_counter() - started

    assert min(seconds() for _ in range(5)) < 0.3


def test_no_shipped_file_has_more_than_400_lines() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in SHIPPED}
    assert not {path: size for path, size in sizes.items() if size > 400}


def test_nothing_shipped_is_unfinished() -> None:
    marks = ("NotImplementedError", "TO" + "DO", "FIX" + "ME", "XXX")
    assert not [f"{path}: {mark}" for path in SHIPPED for mark in marks if mark in path.read_text()]
