"""Every field of a GGUF header is checked before it is used, and named when it is wrong."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from luce_core.errors import ModelFileError
from luce_core.weights.gguf_check import GgufHeader, read_header

F32, Q8_0 = 0, 8
HUGE = 1 << 60


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key_value(key: str | bytes, kind: int, raw: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + raw


def tensor(
    name: str | bytes = "w", dims: tuple[int, ...] = (32,), kind: int = F32, offset: int = 0
) -> bytes:
    head = string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return head + struct.pack("<IQ", kind, offset)


def gguf(
    *,
    version: int = 3,
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data_bytes: int = 1024,
    key_count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data_bytes)


def check(raw: bytes) -> GgufHeader:
    return read_header(Path("m.gguf"), raw)


@contextmanager
def within_a_second() -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < 1


def refused(raw: bytes, match: str) -> None:
    with within_a_second(), pytest.raises(ModelFileError, match=match) as info:
        check(raw)
    assert str(info.value).startswith("m.gguf: ")
    assert "\n" not in str(info.value)


def test_values_of_every_type_are_read() -> None:
    header = check(
        gguf(
            version=2,
            keys=(
                key_value("u8", 0, b"\xff"),
                key_value("i8", 1, b"\xff"),
                key_value("u16", 2, b"\xff\xff"),
                key_value("i16", 3, b"\xff\xff"),
                key_value("u32", 4, b"\xff\xff\xff\xff"),
                key_value("i32", 5, b"\xff\xff\xff\xff"),
                key_value("f32", 6, struct.pack("<f", 0.5)),
                key_value("bool", 7, b"\x01"),
                key_value("string", 8, string("héllo")),
                key_value("strings", 9, struct.pack("<IQ", 8, 2) + string("a") + string("")),
                key_value("i16s", 9, struct.pack("<IQhh", 3, 2, -5, 6)),
                key_value("bools", 9, struct.pack("<IQBB", 7, 2, 0, 1)),
                key_value("none", 9, struct.pack("<IQ", 4, 0)),
                key_value("u64", 10, struct.pack("<Q", 1 << 63)),
                key_value("i64", 11, struct.pack("<q", -(1 << 62))),
                key_value("f64", 12, struct.pack("<d", 0.25)),
            ),
            tensors=(tensor("a", (64, 3), Q8_0, 0), tensor("b", (5,), F32, 224)),
        )
    )
    values = {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in header.metadata.items()
    }
    assert values == {
        "u8": 255, "i8": -1, "u16": 65535, "i16": -1, "u32": 2**32 - 1, "i32": -1, "f32": 0.5,
        "bool": True, "string": "héllo", "strings": ["a", ""], "i16s": [-5, 6],
        "bools": [False, True], "none": [], "u64": 1 << 63, "i64": -(1 << 62), "f64": 0.25,
    }  # fmt: skip
    first, second = header.tensors
    assert (first.name, first.qtype.name, first.shape, first.nbytes) == ("a", "Q8_0", (3, 64), 204)
    assert second.start - first.start == 224
    assert first.start % 32 == 0


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment_of_the_file_is_honoured(alignment: int) -> None:
    keys = (key_value("general.alignment", 4, struct.pack("<I", alignment)),)
    header = check(gguf(keys=keys, tensors=(tensor(),), data_bytes=8192))
    assert header.tensors[0].start % alignment == 0


ALIGNMENT = "general.alignment: must be a power of two up to 1048576, got"
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "version": (gguf(version=1), "version: must be 2 or 3, got 1"),
    "byte order": (gguf(version=3 << 24), "version: this is a big-endian GGUF file"),
    "key count": (gguf(key_count=HUGE), "metadata count: 1152921504606846976; at most 65536"),
    "tensor count": (gguf(tensor_count=HUGE), "tensor count: 1152921504606846976; at most 65536"),
    "more keys than bytes": (
        gguf(key_count=60_000, data_bytes=0),
        "metadata key 0: must be printable text, got ''",
    ),
    "more tensors than bytes": (
        gguf(tensor_count=60_000, data_bytes=0),
        "name of tensor 0: must be printable",
    ),
    "key length": (gguf(keys=(struct.pack("<Q", HUGE),)), "metadata key 0: .* bytes long"),
    "key text": (gguf(keys=(key_value(b"\xff", 0, b"\0"),)), "metadata key 0: is not UTF-8"),
    "key of two lines": (gguf(keys=(key_value("a\nb", 0, b"1"),)), r"0: must be .* got 'a\\nb'"),
    "value type": (gguf(keys=(key_value("k", 13, b""),)), "k: unknown value type 13; 0 to 12"),
    "bool": (gguf(keys=(key_value("k", 7, b"\x02"),)), "k: must be true .1. or false .0., got"),
    "string length": (gguf(keys=(key_value("k", 8, struct.pack("<Q", HUGE)),)), "k: 115.* long"),
    "string end": (
        gguf(keys=(key_value("k", 8, struct.pack("<Q", 9999)),)),
        r"k: needs 9999 bytes from byte \d+, but the file ends at byte",
    ),
    "string text": (gguf(keys=(key_value("k", 8, string(b"\xc3")),)), "k: is not UTF-8"),
    "array type": (gguf(keys=(key_value("k", 9, struct.pack("<IQ", 77, 1)),)), "element type 77"),
    "array of arrays": (
        gguf(keys=(key_value("k", 9, struct.pack("<IQIQ", 9, 1, 9, 1) * 100),)),
        "k: arrays of arrays are not accepted",
    ),
    "array count": (
        gguf(keys=(key_value("k", 9, struct.pack("<IQ", 10, HUGE)),)),
        "k: needs 9223372036854775808 bytes",
    ),
    "string count": (
        gguf(keys=(key_value("k", 9, struct.pack("<IQ", 8, HUGE)),)),
        "k: 1152921504606846976 strings; at most 2097152",
    ),
    "strings of all arrays": (
        gguf(
            keys=tuple(
                key_value(f"k{n}", 9, struct.pack("<IQ", 8, 120_000) + bytes(960_000))
                for n in range(20)
            )
        ),
        "k17: 120000 strings; at most 2097152 are accepted in all arrays",
    ),
    "string count end": (
        gguf(keys=(key_value("k", 9, struct.pack("<IQ", 8, 2_000_000)),)),
        "k: needs 16000000 bytes",
    ),
    "element length": (
        gguf(keys=(key_value("k", 9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", HUGE)),)),
        r"k\[0\]: needs 1152921504606846976 bytes",
    ),
    "element text": (
        gguf(keys=(key_value("k", 9, struct.pack("<IQ", 8, 1) + string(b"\xff")),)),
        r"k\[0\]: is not UTF-8",
    ),
    "bools": (gguf(keys=(key_value("k", 9, struct.pack("<IQB", 7, 1, 5)),)), "k: must hold true"),
    "key twice": (gguf(keys=(key_value("k", 0, b"1"),) * 2), "k: this metadata key occurs twice"),
    "alignment 0": (gguf(keys=(key_value("general.alignment", 4, bytes(4)),)), ALIGNMENT + " 0"),
    "alignment 48": (gguf(keys=(key_value("general.alignment", 0, b"0"),)), ALIGNMENT + " 48"),
    "alignment huge": (
        gguf(keys=(key_value("general.alignment", 10, struct.pack("<Q", HUGE)),)),
        ALIGNMENT + " 1152921504606846976",
    ),
    "alignment negative": (gguf(keys=(key_value("general.alignment", 1, b"\xe0"),)), "got -32"),
    "alignment text": (
        gguf(keys=(key_value("general.alignment", 8, string("32")),)),
        "general.alignment: must be an integer, got '32'",
    ),
    "name length": (gguf(tensors=(struct.pack("<Q", HUGE),)), "name of tensor 0: .* bytes long"),
    "no dimensions": (gguf(tensors=(tensor(dims=()),)), "tensor 'w': has 0 dimensions; 1 to 4"),
    "dimensions": (gguf(tensors=(tensor(dims=(1,) * 5),)), "tensor 'w': has 5 dimensions"),
    "empty dimension": (gguf(tensors=(tensor(dims=(32, 0)),)), r"'w': dimensions \[32, 0\] must"),
    "overflow": (
        gguf(tensors=(tensor(dims=(1 << 32, 1 << 32)),)),
        "'w': dimensions .* below 2.62 in all",
    ),
    "overflow of bytes": (gguf(tensors=(tensor(dims=((1 << 62) - 1,)),)), "'w': ends at byte"),
    "wrap to small": (gguf(tensors=(tensor(dims=(1 << 63, 2)),)), "'w': dimensions"),
    "blocks": (
        gguf(tensors=(tensor(dims=(48, 2), kind=Q8_0),)),
        "'w': rows of 48 values are not whole Q8_0 blocks of 32",
    ),
    "tensor type": (
        gguf(tensors=(tensor(kind=99),)),
        "'w': has unknown ggml type 99; known are F32, F16, .*Q4_K.*MXFP4",
    ),
    "removed type": (gguf(tensors=(tensor(kind=31),)), "type Q4_0_4_4, which ggml has removed"),
    "offset": (gguf(tensors=(tensor(offset=8),)), "offset 8 is not a multiple of alignment 32"),
    "offset past the end": (gguf(tensors=(tensor(offset=1 << 40),)), "ends at byte .* cut off"),
    "offset huge": (gguf(tensors=(tensor(offset=(1 << 64) - 32),)), "ends at byte .* cut off"),
    "name twice": (
        gguf(tensors=(tensor(), tensor(offset=128))),
        "tensor 'w': this tensor name occurs twice",
    ),
    "overlap": (
        gguf(tensors=(tensor("a", (64,)), tensor("b", (8,), offset=224))),
        "tensor 'b': overlaps tensor 'a'",
    ),
    "same place": (gguf(tensors=(tensor("a"), tensor("b"))), "tensor 'b': overlaps tensor 'a'"),
    "cut off": (gguf(tensors=(tensor(dims=(300,)),)), r"'w': ends .* \(\d\d% of it is here\)"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_field_is_named_quickly(name: str) -> None:
    refused(*BAD_FILES[name])


def test_a_file_cut_anywhere_in_its_header_is_refused() -> None:
    strings = struct.pack("<IQ", 8, 3) + string("abc") * 3
    keys = (key_value("k", 9, strings), key_value("f", 6, bytes(4)))
    raw = gguf(keys=keys, tensors=(tensor(),), data_bytes=128)
    check(raw)
    for length in range(1, len(raw)):
        with pytest.raises(ModelFileError):
            check(raw[:length])


def test_a_million_strings_are_read_within_a_second() -> None:
    strings = struct.pack("<IQ", 8, 1_000_000) + string("token") * 1_000_000
    raw = gguf(keys=(key_value("k", 9, strings),))
    with within_a_second():
        assert check(raw).metadata["k"] == ["token"] * 1_000_000
