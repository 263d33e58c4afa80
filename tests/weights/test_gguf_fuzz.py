"""A damaged file loads or is refused with ModelFileError: nothing else, and never slowly."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luce_core.errors import ModelFileError
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.quant_types import QuantTensor

DATA_BYTES = 512


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file with every kind of field."""
    path = write_gguf(
        tmp_path_factory.mktemp("valid") / "m.gguf",
        "llama",
        {
            "general.alignment": 64,
            "general.name": "näme",
            "llama.block_count": 1,
            "llama.rope.freq_base": 10000.0,
            "split.count": 0,
            "flag": True,
            "ints": [1, -2, 3],
            "tokenizer.ggml.tokens": ["a", "b", "<|im_end|>"],
        },
        {
            "token_embd.weight": QuantTensor.from_values("", torch.ones(3, 32), "Q8_0"),
            "blk.0.attn_norm.weight": torch.ones(32),
        },
    )
    return path.read_bytes()


def load(path: Path, raw: bytes) -> bool:
    """Open, read everything and close; False if the file is refused."""
    path.write_bytes(raw)
    start = time.process_time()
    try:
        with GgufFile.open(path, role="any") as file:
            assert all(map(str.isprintable, file.metadata.keys()))
            for tensor in file.tensors.values():
                tensor.dequantize()
                assert tensor.nbytes <= len(raw)
    except ModelFileError:
        return False
    finally:
        assert time.process_time() - start < 1
    return True


def test_the_undamaged_file_loads(valid: bytes, tmp_path: Path) -> None:
    assert load(tmp_path / "m.gguf", valid)


def test_every_truncation_is_refused(valid: bytes, tmp_path: Path) -> None:
    for length in range(len(valid)):
        assert not load(tmp_path / "m.gguf", valid[:length])


def test_every_byte_of_the_header_can_be_damaged(valid: bytes, tmp_path: Path) -> None:
    loaded = 0
    for position in range(len(valid) - DATA_BYTES):
        for flip in (0xFF, 0x01):
            raw = bytearray(valid)
            raw[position] ^= flip
            loaded += load(tmp_path / "m.gguf", bytes(raw))
    assert loaded


NUMBERS = st.sampled_from([0, 1, 0x7F, 0x80, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 60, 1 << 63])
EDITS = st.lists(
    st.tuples(
        st.integers(0, 2000), st.one_of(st.binary(min_size=1, max_size=12), NUMBERS), st.booleans()
    ),
    min_size=1,
    max_size=6,
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(edits=EDITS, cut=st.one_of(st.none(), st.integers(0, 2000)))
def test_any_damage_loads_or_is_refused(
    valid: bytes,
    tmp_path: Path,
    edits: list[tuple[int, bytes | int, bool]],
    cut: int | None,
) -> None:
    raw = bytearray(valid)
    for position, new, inserted in edits:
        piece = new if isinstance(new, bytes) else new.to_bytes(8, "little")
        at = position % len(raw)
        raw[at : at if inserted else at + len(piece)] = piece
    load(tmp_path / "m.gguf", bytes(raw[:cut]))
