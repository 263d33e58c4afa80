"""A model reference becomes a file, or an error that says what would have worked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from luce_core.errors import ConfigError, LuceError, ModelFileError
from luce_core.weights.model_ref import resolve_model


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package whose import would fail."""
    root = tmp_path / "site" / "weights_pkg"
    (root / "sub").mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('imported')")
    (root / "Model.gguf").write_bytes(b"GGUF")
    (root / "sub" / "inner.gguf").write_bytes(b"GGUF")
    (tmp_path / "site" / "outside.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(root.parent)
    return root


def test_a_path_stays_that_path(tmp_path: Path) -> None:
    path = tmp_path / "a model é.gguf"
    path.touch()
    assert resolve_model(str(path)) == path


def test_a_folder_is_its_one_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "m.gguf").touch()
    assert resolve_model(str(tmp_path)) == tmp_path / "m.gguf"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").touch()
    assert resolve_model("~/m.gguf") == tmp_path / "m.gguf"


def test_a_package_file_is_found_without_importing_the_package(package: Path) -> None:
    assert resolve_model("pkg:weights_pkg/Model.gguf") == package / "Model.gguf"
    assert resolve_model("pkg:weights-pkg/Model.gguf") == package / "Model.gguf"
    assert resolve_model("pkg:weights_pkg/sub/inner.gguf") == package / "sub" / "inner.gguf"
    assert resolve_model("pkg:weights_pkg") == package / "Model.gguf"
    assert "weights_pkg" not in sys.modules


@pytest.mark.parametrize(
    "ref",
    [
        "pkg:weights_pkg/../outside.gguf",
        "pkg:weights_pkg/sub/../Model.gguf",
        "pkg:weights_pkg//etc/passwd",
        "pkg:weights_pkg/C:/x.gguf",
        "pkg:weights_pkg/sub\\inner.gguf",
        "pkg:../weights_pkg/Model.gguf",
        "pkg:weights_pkg.sub/inner.gguf",
        "pkg:/Model.gguf",
        "pkg:",
    ],
)
def test_references_that_leave_the_package_are_refused(package: Path, ref: str) -> None:
    with pytest.raises(ConfigError, match="must be pkg:PACKAGE/FILE, with FILE inside"):
        resolve_model(ref)


def test_a_missing_package_is_named_with_the_command_to_install_it() -> None:
    with pytest.raises(
        ConfigError, match="'not_here' is not installed; try `pip install not-here`"
    ):
        resolve_model("pkg:not_here/m.gguf")


@pytest.mark.parametrize("name", ["__main__", "json_", "sys"])
def test_a_module_without_a_folder_is_no_package_of_models(name: str) -> None:
    with pytest.raises(ConfigError, match="is not installed"):
        resolve_model(f"pkg:{name}/m.gguf")


@pytest.mark.parametrize("ref", ["pkg:weights_pkg/model.gguf", "pkg:Weights_pkg/Model.gguf"])
def test_upper_and_lower_case_count(package: Path, ref: str) -> None:
    with pytest.raises(LuceError):
        resolve_model(ref)


def test_a_missing_package_file_lists_what_is_there(package: Path) -> None:
    with pytest.raises(ModelFileError, match=r"'weights_pkg' holds Model\.gguf"):
        resolve_model("pkg:weights_pkg/other.gguf")


def test_a_missing_path_is_named_with_a_near_miss(tmp_path: Path) -> None:
    (tmp_path / "Model.gguf").touch()
    with pytest.raises(ModelFileError, match=r"does not exist; did you mean Model\.gguf\?"):
        resolve_model(str(tmp_path / "model.gguf"))
    with pytest.raises(ModelFileError, match=r"does not exist$"):
        resolve_model(str(tmp_path / "other.gguf"))
    with pytest.raises(ModelFileError, match="there is no folder"):
        resolve_model(str(tmp_path / "none" / "other.gguf"))


@pytest.mark.parametrize("ref", ["~no-such-user/m.gguf", "x" * 5000, ""])
def test_odd_paths_are_refused_like_missing_ones(ref: str) -> None:
    with pytest.raises(ModelFileError):
        resolve_model(ref)


def test_a_folder_of_safetensors_says_to_convert(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelFileError, match=r"safetensors, no \.gguf file: convert"):
        resolve_model(str(tmp_path))
