"""luce works where the library is absent, left out by choice, or limited to an older processor."""

from __future__ import annotations

from collections.abc import Iterator

import luce_kernels_cpu
import pytest
import torch
from luce_kernels_cpu import library, structs
from luce_kernels_cpu.library import KernelsUnavailable, load_library, native
from luce_kernels_cpu.provider import provider

from luce_core.errors import ConfigError
from luce_core.load import build_registry
from luce_core.ops.kernel import REFERENCE
from luce_core.plan import PrefillSlice, StepPlan
from luce_core.plugin_manager import build_plugin_manager

PLAN = StepPlan(1, prefill=(PrefillSlice(0, 0, tuple(range(1, 40)), True),))


@pytest.fixture
def unloaded() -> Iterator[None]:
    """The library as if nothing had asked for it yet."""
    native.cache_clear()
    provider.cache_clear()
    yield
    native.cache_clear()
    provider.cache_clear()


@pytest.mark.usefixtures("unloaded")
def test_a_missing_library_fails_the_plugin_by_name_and_leaves_the_references(
    tmp_path, monkeypatch
) -> None:
    note = tmp_path / "note"
    note.write_text("no C++ compiler was found\nand this is what it said\n")
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "none.so")
    monkeypatch.setattr(library, "NOTE", note)
    plugins = build_plugin_manager(discover=False, plugins=[luce_kernels_cpu])
    registry = build_registry(plugins)
    assert registry.providers == (REFERENCE,)
    (failure,) = plugins.failures
    first, *more = failure.error.splitlines()
    assert "not built: no C++ compiler was found; the torch references do the work" in first
    assert first.endswith("pip install --force-reinstall --no-deps luce-kernels-cpu")
    assert more == ["and this is what it said"]
    assert failure.line.endswith("luce-kernels-cpu (luce plugins says more)")
    assert str(*registry.failures.values()) == failure.error


def test_the_plugin_registers_kernels_and_a_recorder() -> None:
    plugins = build_plugin_manager(discover=False, plugins=[luce_kernels_cpu])
    registry = build_registry(plugins)
    assert not registry.failures
    others = {op for op in registry.specs if registry.kernels(op)[0].provider != "luce_kernels_cpu"}
    # Between steps, for rows that are sampled with filters: torch does it in a few calls.
    assert others == {"kept_tokens"}


def test_a_file_that_is_no_library_is_named(tmp_path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"not an ELF file")
    with pytest.raises(KernelsUnavailable, match=r"broken\.so cannot be loaded"):
        load_library(path)


def test_a_library_of_another_version_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(structs, "ABI_VERSION", 99)
    with pytest.raises(KernelsUnavailable, match="has ABI version 1, this package needs 99"):
        load_library(library.LIBRARY)


def test_the_reference_can_be_forced(load, tiny, stepper) -> None:
    path = tiny(qtype="F32")  # whose activations the native kernels do not round either
    engine = load(path, overrides={"*": REFERENCE}, cache="f32")
    assert {bound.provider for bound in engine._ops.bound} == {REFERENCE}
    (mode,) = engine._ops.modes
    assert mode.startswith("op by op")
    logits = stepper(load(path, cache="f32")).run(PLAN)
    assert torch.allclose(logits, stepper(engine).run(PLAN), atol=1e-4, rtol=1e-4)


@pytest.fixture
def usual_isa() -> Iterator[str]:
    """The instruction set in use, which is again in use after the test."""
    name = provider().isas[0]
    yield name
    provider().set_isa(name)


def test_the_setting_chooses_the_instruction_set(load, tiny, usual_isa) -> None:
    for isa in provider().isas:
        engine = load(tiny(), isa=isa)
        assert native().lk_isa().decode() == isa
        assert engine._model._head.weights[0].kernel.endswith(f" {isa}")
    assert load(tiny())._model._head.weights[0].kernel.endswith(" avx2")


def test_an_instruction_set_that_is_not_there_is_refused_with_those_that_are(load, tiny) -> None:
    there = r"--kernel-isa sse9: this machine has .*avx2 \(luce_kernels_cpu\)"
    with pytest.raises(ConfigError, match=there):
        load(tiny(), isa="sse9")
    with pytest.raises(ConfigError, match="avx2: no kernel in use here has such a choice"):
        load(tiny(), isa="avx2", overrides={"*": REFERENCE})


@pytest.mark.usefixtures("unloaded")
def test_a_processor_without_avx2_gets_the_references(monkeypatch) -> None:
    monkeypatch.setattr(type(provider()), "isas", ())
    registry = build_registry(build_plugin_manager(discover=False, plugins=[luce_kernels_cpu]))
    assert registry.providers == (REFERENCE,)
    (failure,) = registry.failures.values()
    assert "need a processor with AVX2" in str(failure)


@pytest.mark.parametrize("isa", [b"avx2", b"avx512"])
def test_older_instruction_sets_give_the_same_text(load, tiny, stepper, isa) -> None:
    best = native().lk_isa()
    expected = stepper(load(tiny())).run(PLAN)
    if native().lk_force_isa(isa):
        pytest.skip(f"this processor has no {isa.decode()}")
    try:
        engine = load(tiny())
        assert native().lk_isa() == isa
        assert engine._model._head.weights[0].kernel.endswith(isa.decode())
        logits = stepper(engine).run(PLAN)
    finally:
        native().lk_force_isa(best)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    assert torch.allclose(logits, expected, atol=1e-4, rtol=1e-4)


def test_an_unknown_instruction_set_is_refused() -> None:
    assert native().lk_force_isa(b"sse9") == -1
    assert "no instruction set 'sse9'" in library.last_error(native())


def test_no_number_of_threads_is_too_strange(load, tiny, stepper) -> None:
    with pytest.raises(ConfigError, match=r"--threads: a pool needs 1 to 1024 threads, got 1025"):
        provider().set_threads(1025)
    one = stepper(load(tiny(), threads=1)).run(PLAN)
    assert torch.equal(stepper(load(tiny(), threads=5)).run(PLAN), one)
    assert torch.get_num_threads() == 1
