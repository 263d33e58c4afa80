"""`luce ops --roofline` and `luce tune`: what a plugin offers, and what is refused."""

from __future__ import annotations

import json

import pytest

TOOLS = """
from luce_core.engine import hookimpl

@hookimpl
def luce_register_device_tools(register):
    from luce_core.errors import ConfigError
    from luce_core.ops.device_tools import (
        DeviceLimits, DeviceTools, OpCost, Roofline, StepCost
    )
    from luce_core.ops.program import Rates, Work

    def roofline(devices, model):
        if devices != ("small", "large"):
            raise ConfigError(f"unknown device in {devices}")
        limits = tuple(
            DeviceLimits(
                name=name, title=name.upper(), rates=Rates(rate, 1.0, 1e12), source="a page"
            )
            for name, rate in (("small", 1e9), ("large", 4e9))
        )
        ops = (
            OpCost(op="add", what="64", calls=3, least=Work(2000, 0, 10), moved_bytes=3000),
            OpCost(op="norm", what="64", calls=1, least=Work(10, 0, 8_000_000), moved_bytes=None),
        )
        return Roofline(devices=limits, steps=(StepCost(model=str(model), step="one", ops=ops),))

    def tune(model, device, only, path, tell):
        tell(f"tuned {model.name} on {device}")

    register(DeviceTools(provider="tools", roofline=roofline, tune=tune))
"""


@pytest.fixture
def tools(install_plugin, monkeypatch) -> None:
    install_plugin("tools", TOOLS)
    monkeypatch.setenv("LUCE_PLUGINS", "tools")


def test_a_roofline_has_a_limit_for_each_device_and_goes_into_a_file(luce, tools, tmp_path):
    path = tmp_path / "roofline.json"
    words = ("--roofline", "small, large", "--model", "m", "--json", path)
    code, out, err = luce("ops", *words)
    assert (code, err) == (0, "")
    assert "small: SMALL, 1 GB/s, 1 T operations/s (a page)" in out
    written = json.loads(path.read_text())
    add, norm = written["steps"][0]["ops"]
    # Three calls of 2000 bytes at 1 and 4 GB/s; computing for 8 us.
    assert add["limits_us"] == pytest.approx({"small": 6.0, "large": 1.5})
    assert norm["limits_us"] == pytest.approx({"small": 8.0, "large": 8.0})
    (row,) = (line.split("│") for line in out.splitlines() if "add" in line)
    assert [cell.strip() for cell in row[6:9]] == ["1.50", "6", "1.5"]


def test_what_the_provider_does_not_know_is_refused(luce, tools):
    code, _, err = luce("ops", "--roofline", "huge")
    assert (code, err) == (1, "luce ops: unknown device in ('huge',)\n")


def test_options_of_the_roofline_alone_are_no_words_of_the_list(luce):
    code, _, err = luce("ops", "--model", "m")
    assert code == 2
    assert "--model needs --roofline" in err


def test_without_a_provider_both_say_what_to_install(luce, monkeypatch, tiny_model):
    monkeypatch.setenv("LUCE_PLUGINS", "llama")
    code, _, err = luce("ops", "--roofline", "r9700")
    assert code == 1
    assert "try pip install luce-kernels-rocm" in err
    code, _, err = luce("tune", tiny_model, "--device", "cpu")
    assert code == 1
    assert "try pip install luce-kernels-rocm" in err


def test_tune_needs_the_device_to_be_there(luce, tools, tiny_model):
    code, out, err = luce("tune", tiny_model, "--device", "hip:7")
    assert (code, out) == (1, "")
    assert err.startswith("luce tune: device hip:7 is not there; torch")


def test_tune_hands_over_to_the_provider(luce, tools, tiny_model):
    code, out, _ = luce("tune", tiny_model, "--device", "cpu")
    assert code == 0
    assert f"tuned {tiny_model.name} on cpu" in out


def test_a_table_that_nothing_reads_ends_the_start(luce, tiny_model, tmp_path):
    table = tmp_path / "table.json"
    table.write_text("{}")
    code, _, err = luce("serve", tiny_model, "--port", "0", "--kernel-table", table)
    assert code == 1
    assert f"--kernel-table {table}: no kernel for cpu reads a table of tiles" in err
