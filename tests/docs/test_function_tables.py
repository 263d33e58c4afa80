"""`file: function` in a table is a promise that the function is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

_NAMED = re.compile(r"`([\w/]+\.py)`: `(\w+)`")


@pytest.mark.parametrize(("page", "least"), [("docs/one_token.md", 30), ("README.md", 10)])
def test_every_named_function_exists_in_its_file(
    page: str, least: int, pages: dict[str, Any], root: Path
) -> None:
    named = _NAMED.findall(pages[page].text)
    assert len(named) >= least
    missing = [
        f"{file}: {function}"
        for file, function in named
        if function not in functions_of(root / file)
    ]
    assert not missing


def functions_of(path: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, kinds)}


def test_every_named_file_and_folder_exists(pages: dict[str, Any], root: Path) -> None:
    text = "\n".join(page.text for page in pages.values())
    prefixes = r"(?:luce_core|plugins|examples|tests|docs)"
    named = set(re.findall(rf"`({prefixes}/[\w./]*)`", text))
    assert len(named) > 20
    assert not [path for path in sorted(named) if not (root / path).exists()]
