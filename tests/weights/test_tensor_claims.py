"""Every tensor of a file is claimed once, skipped with a line, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from luce_core.errors import ModelFileError
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.tensor_claims import TensorClaims


@pytest.fixture
def claims(tmp_path: Path) -> TensorClaims:
    tensors = {
        name: torch.zeros(4, 8) for name in ("blk.0.a", "blk.1.a", "blk.10.a", "v.patch", "b")
    }
    return TensorClaims(GgufFile.open(write_gguf(tmp_path / "m.gguf", "none", {}, tensors)))


def test_what_is_claimed_has_its_shape_and_counts(claims: TensorClaims) -> None:
    assert claims.take("b", 4, -1).shape == (4, 8)
    assert claims.claimed_bytes == 4 * 8 * 4
    assert claims.take_optional("c", 1) is None
    with pytest.raises(ModelFileError, match="b: this tensor is missing"):
        claims.take("b", 4, 8)
    with pytest.raises(ModelFileError, match=r"blk\.0\.a: has shape \[4, 8\], expected \[8, 4\]"):
        claims.take("blk.0.a", 8, 4)


def test_a_prefix_is_skipped_with_one_line(claims: TensorClaims, caplog) -> None:
    with caplog.at_level("INFO"):
        claims.skip("blk.1.", "another layer")
        claims.skip("blk.2.", "no layer")
    (line,) = caplog.records
    assert line.getMessage().endswith("1 tensors of another layer are skipped")
    assert claims.take_optional("blk.1.a", 4, 8) is None
    assert claims.take("blk.10.a", 4, 8)


def test_what_is_left_over_is_named(claims: TensorClaims) -> None:
    claims.take("b", 4, 8)
    with pytest.raises(ModelFileError, match=r"blk\.0\.a, blk\.1\.a, blk\.10\.a: unknown"):
        claims.finish()
    claims.skip("blk.", "all layers")
    claims.finish()  # the tensor of the vision part is skipped
