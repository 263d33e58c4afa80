"""The repository's pages, as the tests of this folder read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Fence(NamedTuple):
    """A fenced block and its language, "" if it states none."""

    language: str
    text: str


class Cell(str):
    """A cell of a table."""

    @property
    def spans(self) -> list[str]:
        """Its code spans."""
        return re.findall(r"`([^`]+)`", self)


class Page:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()

    @property
    def fences(self) -> list[Fence]:
        return [Fence(*found) for found in _FENCE.findall(self.text)]

    @property
    def spans(self) -> list[str]:
        """The code spans outside of fences."""
        return re.findall(r"`([^`\n]+)`", _FENCE.sub("", self.text))

    def python(self) -> list[str]:
        return [fence.text for fence in self.fences if fence.language == "python"]

    def table(self, *head: str) -> list[list[Cell]]:
        """Cells of the one table whose head begins with these words."""
        first = "| " + " | ".join(head)
        lines = iter(self.text.splitlines())
        for line in lines:
            if line.startswith(first):
                next(lines)
                return [cells(row) for row in iter(lambda: next(lines, ""), "") if row[:1] == "|"]
        raise AssertionError(f"{self.path.name}: no table {head}")


def cells(row: str) -> list[Cell]:
    return [Cell(cell.strip().replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def pages() -> dict[str, Page]:
    """Every page for readers, by its path from the root."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    return {str(path.relative_to(ROOT)): Page(path) for path in sorted(found)}
