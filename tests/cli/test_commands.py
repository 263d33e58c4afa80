"""`luce` and its commands: usage, exit codes, tables."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from luce_core.cli import USAGE
from luce_core.settings import Settings

COMMANDS = re.findall(r"^  (\w+) ", USAGE, re.MULTILINE)


def test_no_command_is_a_usage_error(luce):
    assert luce() == (2, USAGE, "")


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_is_the_usage(luce, word):
    assert luce(word) == (0, USAGE, "")


def test_an_unknown_command_is_named_with_the_known_ones(luce):
    code, out, err = luce("sreve", "model.gguf")
    assert (code, out) == (2, "")
    assert err == f"luce: unknown command 'sreve'\n\n{USAGE}"


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version_is_that_of_the_distribution(luce, word):
    assert luce(word) == (0, f"luce-core {importlib.metadata.version('luce-core')}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(luce, command):
    code, out, err = luce(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: luce {command} ")


@pytest.mark.parametrize("command", ["plugins", "ops", "version"])
def test_a_command_without_options_refuses_words(luce, command):
    code, out, err = luce(command, "--fast")
    assert (code, out) == (2, "")
    assert f"luce {command}: error: unrecognized arguments: --fast" in err


def test_the_help_of_serve_is_for_users(luce):
    """Every flag with its meaning; no Python types, no lines that a terminal would break."""
    out = luce("serve", "--help").out
    assert out.startswith("usage: luce serve MODEL [options]\n")
    assert "LUCE_ variable" in out
    assert not re.search(r"tuple|\bNone\b|\(\)|==|pydantic|Annotated", out)
    assert max(map(len, out.splitlines())) <= 80
    flat = " ".join(out.split())
    for name, field in Settings.model_fields.items():
        assert field.description
        assert field.description in flat, name
        if name != "model":
            assert f"--{name.replace('_', '-')}" in out


def test_plugins_lists_plugins_with_hooks_and_engines_with_architectures(luce):
    code, out, _ = luce("plugins")
    assert code == 0
    assert re.search(r"│ llama +│ [\d.]+ +│ luce_register_engines", out)
    assert re.search(r"│ llama +│ llama, qwen2, qwen3 +│ cache_type_k, cache_type_v", out)
    assert "failed" not in out


def test_ops_lists_every_op_with_its_providers(luce):
    code, out, _ = luce("ops")
    assert code == 0
    for op in ("paged_attention", "quant_matmul", "rms_norm", "rope", "embedding_rows"):
        assert re.search(rf"│ {op} +│ \w+ +│ (any|cpu) +│", out), op
    assert len(re.findall(r"│ reference +│ any +│", out)) >= 10
    assert "Rotary embedding" in out


def test_the_installed_command_ends_with_the_exit_code(luce_process):
    assert luce_process("version").code == 0
    assert luce_process("nonsense").code == 2
    assert luce_process("serve").code == 1
