"""Tables of docs/ are what the code says: `make docs` would change nothing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from luce_core.settings import Settings, parse_settings


@pytest.fixture(scope="module")
def generate(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", root / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_as_the_code_would_write_it(
    generate: ModuleType, pages: dict[str, Any]
) -> None:
    stale = [name for name, page in pages.items() if generate.fresh(page.text) != page.text]
    assert not stale, f"run `make docs` for {stale}"


def test_every_generated_part_is_on_a_page(generate: ModuleType, pages: dict[str, Any]) -> None:
    text = "\n".join(page.text for page in pages.values())
    assert sorted(re.findall(r"<!-- begin ([\w-]+) -->", text)) == sorted(generate.BLOCKS)
    assert len(re.findall(r"<!-- end ", text)) == len(generate.BLOCKS)


def test_every_setting_has_a_row_with_flag_variable_and_meaning(pages: dict[str, Any]) -> None:
    rows = {row[0].strip("`"): row for row in pages["docs/settings.md"].table("flag")}
    flags = {"--" + name.replace("_", "-") for name in Settings.model_fields} - {"--model"}
    assert rows.keys() == flags | {"MODEL"}
    for flag in flags:
        assert rows[flag][1] == f"`LUCE_{flag[2:].replace('-', '_').upper()}`"
        assert all(rows[flag][2:]), rows[flag]


def test_the_settings_file_of_the_page_is_accepted(pages: dict[str, Any], tmp_path: Path) -> None:
    (example,) = [f.text for f in pages["docs/settings.md"].fences if f.language == "toml"]
    (tmp_path / "luce.toml").write_text(example)
    settings = parse_settings(["model.gguf", "--config", str(tmp_path / "luce.toml")])
    assert (settings.max_concurrency, settings.kv_pool_tokens) == (4, 8192)


def test_every_cap_and_default_can_be_set_by_its_variable(
    pages: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of the page are read: each is set to its own default."""
    for flag, variable, default, *_ in pages["docs/settings.md"].table("flag"):
        if default.startswith("`") and flag != "`MODEL`":
            monkeypatch.setenv(variable.strip("`"), default.strip("`"))
    assert parse_settings(["model.gguf"]) == Settings.model_validate({"model": "model.gguf"})
