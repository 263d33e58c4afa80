"""The build compiles what has changed, once per instruction set, and says why it cannot."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "build_native.py"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_native", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build(tmp_path, monkeypatch) -> ModuleType:
    """The build script on a folder of two sources, with a compiler that only notes its calls."""
    module = loaded()
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "plain.cpp").write_text('#include "outer.h"\n')
    (sources / "kernel.cpp").write_text("namespace lk::LK_ISA_NS {}\n")
    (sources / "outer.h").write_text('#include "inner.h"\n')
    (sources / "inner.h").write_text("int one();\n")
    module.calls = []

    def run(command: list[str]) -> str:
        module.calls.append(command)
        if "-o" in command:
            Path(command[command.index("-o") + 1]).write_text("made")
        return "compiler 1.0\n"

    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "SOURCES", sources)
    monkeypatch.setattr(module, "find_compiler", lambda: "cc")
    monkeypatch.setattr(module, "_run", run)
    monkeypatch.setattr(module, "_knows_amx", lambda compiler: False)
    return module


def compiled(module: ModuleType, target: Path) -> list[str]:
    """Sources compiled by one build, with their namespace."""
    module.calls.clear()
    module.build(target, jobs=1)
    return [
        " ".join([Path(call[call.index("-c") + 1]).name, *(w for w in call if "LK_ISA_NS" in w)])
        for call in module.calls
        if "-c" in call
    ]


def test_kernels_are_compiled_once_per_instruction_set(build, tmp_path) -> None:
    assert compiled(build, tmp_path / "out.so") == [
        "kernel.cpp -DLK_ISA_NS=avx2",
        "kernel.cpp -DLK_ISA_NS=avx512",
        "kernel.cpp -DLK_ISA_NS=avx512_vnni",
        "plain.cpp",
    ]
    assert (tmp_path / "out.so").exists()


def test_tile_registers_are_used_where_compiler_and_source_do(build, tmp_path, monkeypatch) -> None:
    (tmp_path / "csrc" / "amx.h").write_text("")
    (tmp_path / "csrc" / "wide.cpp").write_text('#include "amx.h"\nnamespace lk::LK_ISA_NS {}\n')
    monkeypatch.setattr(build, "_knows_amx", lambda compiler: True)
    tiled = [unit for unit in compiled(build, tmp_path / "out.so") if unit.endswith("=amx")]
    assert tiled == ["wide.cpp -DLK_ISA_NS=amx"]
    assert all("-DLK_WITH_AMX" in call for call in build.calls if "-c" in call)


def test_only_what_includes_a_changed_header_is_compiled_again(build, tmp_path) -> None:
    compiled(build, tmp_path / "out.so")
    assert compiled(build, tmp_path / "out.so") == []
    (tmp_path / "csrc" / "inner.h").write_text("int two();\n")
    assert compiled(build, tmp_path / "out.so") == ["plain.cpp"]
    kept = list((tmp_path / "build" / "objects").glob("plain-*.o"))
    assert len(kept) == 1


def test_no_source_for_any_processor_gets_newer_instructions(build, tmp_path) -> None:
    compiled(build, tmp_path / "out.so")
    for call in build.calls:
        if any(word.endswith("plain.cpp") for word in call):
            assert not [word for word in call if word.startswith(("-mavx", "-march"))]


def test_a_machine_without_a_compiler_is_told_what_to_install(monkeypatch, tmp_path) -> None:
    module = loaded()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        module.BuildError, match=r"no C\+\+ compiler was found .* apt install g\+\+"
    ):
        module.find_compiler()


def test_what_the_compiler_said_is_passed_on(tmp_path, monkeypatch) -> None:
    module = loaded()
    source = tmp_path / "csrc" / "wrong.cpp"
    source.parent.mkdir()
    source.write_text("int f() { return nothing; }\n")
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "SOURCES", source.parent)
    with pytest.raises(module.BuildError, match=r"(?s)failed\n.*wrong\.cpp.*nothing"):
        module.build(tmp_path / "out.so")
