"""A plugin that fails is named and takes nothing down; the engine of a file is never a guess."""

from __future__ import annotations

import re

import pytest

from luce_core.load import open_model
from luce_core.plugin_manager import build_plugin_manager
from luce_core.settings import parse_settings
from luce_core.weights.synthetic import SyntheticModel, dense_metadata, dense_tensors, write_random

ENGINE = """
from luce_core.engine import EngineSpec, hookimpl

def build(context):
    raise RuntimeError("not meant to be built")

@hookimpl
def luce_register_engines(register):
    register(EngineSpec(name={name!r}, architectures={architectures!r}, build=build, {more}))
"""


def engine_code(name: str, *architectures: str, more: str = "") -> str:
    return ENGINE.format(name=name, architectures=architectures, more=more)


def flat(text: str) -> str:
    """The text of a table's cells, whatever the line breaks."""
    return " ".join(re.sub(r"[│┃\n]", " ", text).split())


BROKEN = {
    "missing_import": ("import a_module_that_is_nowhere", "No module named 'a_module_that_is"),
    "exits": ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
    "misspelt": (
        "from luce_core.engine import hookimpl\n@hookimpl\ndef luce_register_engine(register): ...",
        "unknown hook 'luce_register_engine'",
    ),
    "wrong_argument": (
        "from luce_core.engine import hookimpl\n"
        "@hookimpl\ndef luce_register_engines(registry): ...",
        "registry",
    ),
    "raises": (
        "from luce_core.engine import hookimpl\n"
        "@hookimpl\ndef luce_register_engines(register): raise ValueError('half done')",
        "ValueError: half done",
    ),
    "other_api": (engine_code("other", "x", more="api_version=99"), "made for engine API 99"),
    "brackets": (
        "raise OSError('[/lib] needs [bold]one of[/] :smile:')",
        "OSError: [/lib] needs [bold]one of[/] :smile:",
    ),
    "no_spec": (
        "from luce_core.engine import hookimpl\n"
        "@hookimpl\ndef luce_register_engines(register): register('llama')",
        "expected an EngineSpec, got 'llama'",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_named_with_its_error_and_the_others_work(luce, install_plugin, kind):
    code, said = BROKEN[kind]
    install_plugin(kind, code)
    listed = luce("plugins")
    assert listed.code == 0
    assert re.search(rf"│ {kind} +│ 0\.7 +│ failed: ", listed.out)
    assert said in flat(listed.out)
    assert re.search(r"│ llama +│ llama, qwen2, qwen3 ", listed.out)
    assert "Traceback" not in listed.out + listed.err


BROKEN_KERNELS = """
from luce_core.engine import hookimpl

@hookimpl
def luce_register_kernels(register):
    raise OSError("libfast.so: [Errno 8] wrong format")
"""


def test_a_broken_kernel_provider_is_named_by_ops_and_when_it_is_asked_for(
    luce, install_plugin, tiny_model
):
    install_plugin("fastkernels", BROKEN_KERNELS)
    code, out, _ = luce("ops")
    assert code == 0
    said = "OSError: libfast.so: [Errno 8] wrong format"
    assert f"fastkernels failed: {said}" in out
    assert "paged_attention" in out
    code, _, err = luce("serve", tiny_model, "--op", "fastkernels", "--port", "0")
    assert (code, err) == (1, f"luce serve: provider 'fastkernels' failed to load: {said}\n")


TWO_ISAS = """
import torch
from luce_core.engine import hookimpl

def add(a, b, out):
    out.copy_(a + b)

@hookimpl
def luce_register_kernels(register):
    isas = {"wide": lambda: None, "narrow": lambda: None}
    register("add", add, device="cpu", dtypes=(), provider="fast", isas=isas)
"""


def test_ops_names_the_instruction_sets_and_the_one_in_use(luce, install_plugin, monkeypatch):
    install_plugin("fast", TWO_ISAS)
    monkeypatch.setenv("LUCE_PLUGINS", "fast")
    there = "this machine has wide, narrow (--kernel-isa)"
    assert f"fast: instruction set wide; {there}" in luce("ops").out
    monkeypatch.setenv("LUCE_KERNEL_ISA", "narrow")
    assert f"fast: instruction set narrow; {there}" in luce("ops").out
    code, _, err = luce("ops", "--kernel-isa", "sse9")
    assert (code, err) == (1, "luce ops: --kernel-isa sse9: this machine has wide, narrow (fast)\n")


def test_a_broken_plugin_does_not_keep_a_file_from_being_served(
    luce, install_plugin, tiny_model, monkeypatch
):
    """Its failure is no reason to refuse a file that another engine runs."""
    install_plugin("broken_beside", "raise ImportError('no such device')")
    served = []
    monkeypatch.setattr("luce_core.serve.serve", lambda *arguments: served.append(arguments) or 0)
    assert luce("serve", tiny_model).code == 0
    settings, plugins, _ = served[0]
    assert settings.model == str(tiny_model)
    assert [failure.name for failure in plugins.failures] == ["broken_beside"]


def test_the_message_for_a_missing_engine_names_the_plugin_that_failed(
    luce, install_plugin, tiny_model
):
    install_plugin("wanted", "raise ImportError('libwanted.so is missing')")
    code, _, err = luce("serve", tiny_model, "--engine", "wanted")
    assert code == 1
    assert re.search(
        r"no engine 'wanted'; installed engines: .*\bllama \(llama, qwen2, qwen3\)", err
    )
    assert "plugin wanted 0.7 did not load: ImportError: libwanted.so is missing" in err


def test_an_architecture_that_nobody_takes_is_named_with_what_there_is(luce, tmp_path):
    model = SyntheticModel()
    metadata = {**dense_metadata(model), "general.architecture": "mamba9"}
    path = write_random(tmp_path / "m.gguf", metadata, dense_tensors(model))
    code, _, err = luce("serve", path)
    assert code == 1
    assert "no engine takes architecture 'mamba9'; installed engines: " in err
    assert "llama (llama, qwen2, qwen3)" in err


def test_without_any_plugin_the_message_says_what_to_install(luce, tiny_model, monkeypatch):
    monkeypatch.setenv("LUCE_PLUGINS", "")
    code, _, err = luce("serve", tiny_model)
    assert code == 1
    assert "installed engines: none (try pip install luce-llama)" in err


def test_luce_plugins_is_an_allow_list(luce, install_plugin, monkeypatch):
    install_plugin("allowed", engine_code("allowed", "allowed"))
    install_plugin("unlisted", "raise AssertionError('this plugin must not be imported')")
    monkeypatch.setenv("LUCE_PLUGINS", "allowed, absent,")
    out = luce("plugins").out
    assert re.search(r"│ allowed +│ 0\.7 +│ luce_register_engines", out)
    assert "qwen2" not in out
    assert "AssertionError" not in out
    assert re.search(
        r"no such plugin is installed; there is: allowed, .*llama, .*unlisted", flat(out)
    )
    assert re.search(r"│ absent +│ +│ failed", out)


def test_two_engines_for_one_architecture_are_both_listed_and_engine_decides(
    luce, install_plugin, tiny_model
):
    install_plugin("rival", engine_code("rival", "llama", "other"))
    code, _, err = luce("serve", tiny_model)
    assert code == 1
    assert "several engines take architecture 'llama': llama, rival; choose with --engine" in err
    plugins = build_plugin_manager()
    for name in ("llama", "rival"):
        settings = parse_settings([str(tiny_model), "--engine", name])
        assert open_model(settings, plugins).spec.name == name


FIELDS = """
from pydantic import BaseModel, Field
class Options(BaseModel):
    {fields}
"""


def test_an_engines_own_settings_are_flags_and_a_collision_is_an_error(
    luce, install_plugin, tiny_model
):
    own = FIELDS.format(fields="fieldly_rows: int = Field(7, ge=1, description='rows at once')")
    install_plugin("fieldly", own + engine_code("fieldly", "f", more="settings=Options"))
    assert "--fieldly-rows int" in luce("serve", "--help").out
    code, _, err = luce("serve", tiny_model, "--fieldly-rows", "0")
    assert (code, "--fieldly-rows" in err) == (1, True)
    code, _, err = luce("serve", tiny_model, "--fieldly-rows", "5")
    assert code == 1
    assert "engine llama does not take --fieldly-rows" in err
    taken = FIELDS.format(fields="port: int = 1")
    install_plugin("grabby", taken + engine_code("grabby", "g", more="settings=Options"))
    code, _, err = luce("serve", tiny_model)
    assert code == 1
    assert "engine grabby: --port is already a flag of luce-core" in err


def test_a_broken_plugin_is_named_in_a_process_of_its_own(luce_process, install_plugin):
    env = install_plugin("broken_apart", "1 / 0")
    code, out, err = luce_process("plugins", env=env)
    assert (code, err) == (0, "")
    assert "ZeroDivisionError: division by zero" in flat(out)
    assert "qwen2" in out
