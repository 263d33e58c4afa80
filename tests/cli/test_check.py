"""`luce check` passes for an engine that keeps the contract and fails for one that does not."""

from __future__ import annotations

import pytest

# The llama engine, except that decoding reads one token of the past wrongly: with others in the
# step it takes their token.
MIXED_UP = """
from luce_core.engine import EngineSpec, hookimpl

def build(context):
    from luce_llama.engine import LlamaEngine

    class MixedUp(LlamaEngine):
        @hookimpl
        def lower_plan(self, plan):
            if len(plan.decode) > 1:
                first, second, *others = plan.decode
                swapped = first._replace(token=second.token), second._replace(token=first.token)
                plan = type(plan)(plan.step, plan.prefill, (*swapped, *others))
            return super().lower_plan(plan)

    return MixedUp.load(context)

@hookimpl
def luce_register_engines(register):
    register(EngineSpec(name="mixedup", architectures=("llama",), build=build))
"""
UNHOOKED = """
from luce_core.engine import EngineSpec, hookimpl

def build(context):
    from luce_llama.engine import LlamaEngine

    class Unhooked(LlamaEngine):
        def execute(self, lowered):
            return super().execute(lowered)

    return Unhooked.load(context)

@hookimpl
def luce_register_engines(register):
    register(EngineSpec(name="unhooked", architectures=("llama",), build=build))
"""


def test_check_passes_on_a_good_engine_and_says_what_it_ran(luce_process, tiny_model):
    code, out, err = luce_process("check", tiny_model, "--threads", "1")
    assert code == 0, out + err
    assert "test_company_changes_no_tokens PASSED" in out
    assert "FAILED" not in out
    assert "Warning" not in out + err


def test_check_fails_on_an_engine_that_mixes_up_its_rows(luce_process, install_plugin, tiny_model):
    env = install_plugin("mixedup", MIXED_UP)
    code, out, _ = luce_process(
        "check", tiny_model, "--engine", "mixedup", "--threads", "1", env=env
    )
    assert code == 1
    assert "test_company_changes_no_tokens FAILED" in out


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_hook_without_its_marker_is_refused_by_name(
    luce, install_plugin, tiny_model, command, monkeypatch
):
    install_plugin(f"unhooked_{command}", UNHOOKED)
    code, _, err = luce(
        command, tiny_model, "--engine", "unhooked", "--threads", "1", "--port", "0"
    )
    assert code == 1
    assert err == f"luce {command}: engine Unhooked: hook execute lacks @hookimpl\n"


def test_check_refuses_a_file_that_is_no_model(luce, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_text("{}")
    code, out, err = luce("check", path)
    assert (code, out) == (1, "")
    assert "this is a JSON file, not a GGUF model" in err
