"""Each flag of the launch lines is accepted, or refused by name; each old variable warns."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from luce_deepseek_v4.settings import DeepSeekSettings

from luce_core.errors import ConfigError
from luce_core.settings import (
    Settings,
    parse_settings,
    unknown_variables,
    with_engine_settings,
)

SETTINGS = with_engine_settings({"deepseek_v4": DeepSeekSettings})


@pytest.fixture(scope="module")
def flags(pages: dict[str, Any]) -> list[list[Any]]:
    rows: list[list[Any]] = pages["docs/launch_lines.md"].table("flag", "accepted")
    assert len(rows) >= 20
    return rows


def words_of(span: str) -> list[str]:
    words = shlex.split(span)
    return words if words[0] == "model.gguf" else ["model.gguf", *words]


def test_what_the_page_calls_accepted_is_accepted(flags: list[list[Any]]) -> None:
    for flag, accepted, *_ in flags:
        examples = accepted.spans
        assert examples, flag
        for example in examples:
            assert example.startswith((flag.strip("`"), "model.gguf"))
            parse_settings(words_of(example), SETTINGS)


def test_what_the_page_calls_refused_is_refused_by_name(flags: list[list[Any]]) -> None:
    examples = [(flag.strip("`"), span) for flag, _, refused, _ in flags for span in refused.spans]
    assert len(examples) >= 10
    for flag, example in examples:
        with pytest.raises(ConfigError, match=flag):
            parse_settings(words_of(example), SETTINGS)


def test_the_launches_are_accepted(pages: dict[str, Any]) -> None:
    lines = [f.text for f in pages["docs/launch_lines.md"].fences if "luce serve" in f.text]
    assert len(lines) == 3
    for line in lines:
        _, _, *words = shlex.split(line)
        settings = parse_settings(words, SETTINGS)
        assert settings.max_concurrency == 6
        assert settings.paged_attention
    assert settings.kv_pool_tokens == 24_576
    assert parse_settings(shlex.split(lines[0])[2:]).min_tokens == 256


def test_every_old_variable_warns_and_names_what_replaces_it(pages: dict[str, Any]) -> None:
    rows = pages["docs/launch_lines.md"].table("variable", "here")
    assert len(rows) >= 13
    for cell, here in rows:
        (variable,) = cell.spans
        (note,) = unknown_variables({variable: "1"}, Settings)
        assert variable in note
        if "no counterpart" in here:
            assert "does nothing" in note
        else:
            named = re.findall(r"--[\w-]+|LUCE_\w+", note)
            assert named, note
            assert named[-1] in here, note


def test_the_drivers_own_variables_are_left_alone() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0", "LUCE_PORT": "1"}
    assert unknown_variables(environ, Settings) == []
