"""A wrong or missing metadata key fails by name; a right one comes back as a plain value."""

from __future__ import annotations

import numpy as np
import pytest

from luce_core.errors import ModelFileError
from luce_core.weights.typed_metadata import TypedMetadata

VALUES = {
    "int": 7,
    "float": 0.5,
    "bool": True,
    "str": "llama",
    "nan": float("nan"),
    "ints": np.array([1, 2, 3], np.int32),
    "floats": np.array([0.5, 1.0], np.float32),
    "bools": np.array([True, False]),
    "strings": ["a", "b"],
    "long": list(map(str, range(1000))),
    "empty": [],
}


@pytest.fixture
def metadata() -> TypedMetadata:
    return TypedMetadata("/models/m.gguf", VALUES)


def test_values_come_back_as_plain_python(metadata: TypedMetadata) -> None:
    assert metadata.int("int") == 7
    assert metadata.float("float") == 0.5
    assert metadata.float("int") == 7.0
    assert metadata.bool("bool") is True
    assert metadata.str("str") == "llama"
    assert metadata.ints("ints") == (1, 2, 3)
    assert type(metadata.ints("ints")[0]) is int
    assert metadata.floats("floats") == (0.5, 1.0)
    assert metadata.strings("strings") == ("a", "b")
    assert metadata.strings("empty") == ()
    assert metadata.has("int")
    assert not metadata.has("none")
    assert set(metadata.keys()) == set(VALUES)


@pytest.mark.parametrize("method", ["int", "float", "bool", "str", "ints", "floats", "strings"])
def test_missing_key_needs_a_default(metadata: TypedMetadata, method: str) -> None:
    assert getattr(metadata, method)("none", None) is None
    with pytest.raises(ModelFileError, match=r"/models/m\.gguf: none: is missing: must be") as info:
        getattr(metadata, method)("none")
    assert info.value.field == "none"


@pytest.mark.parametrize(
    ("method", "key", "accepted"),
    [
        ("int", "bool", "an integer, got True"),
        ("int", "float", "an integer, got 0.5"),
        ("int", "ints", r"an integer, got \[1, 2, 3\]"),
        ("float", "bool", "a finite number, got True"),
        ("float", "nan", "a finite number, got nan"),
        ("float", "str", "a finite number, got 'llama'"),
        ("bool", "int", "true or false, got 7"),
        ("str", "int", "a string, got 7"),
        ("str", "long", r"a string, got \['0'.{60,80}\.\.\.$"),
        ("ints", "int", "an array of integers, got 7"),
        ("ints", "floats", "an array of integers"),
        ("ints", "bools", "an array of integers"),
        ("ints", "str", "an array of integers"),
        ("floats", "strings", "an array of numbers"),
        ("strings", "str", "an array of strings"),
        ("strings", "ints", "an array of strings"),
        ("bools", "bool", "an array of true and false"),
        ("bools", "ints", "an array of true and false"),
    ],
)
def test_wrong_type_is_refused(
    metadata: TypedMetadata, method: str, key: str, accepted: str
) -> None:
    with pytest.raises(ModelFileError, match=f": {key}: must be {accepted}"):
        getattr(metadata, method)(key)
    with pytest.raises(ModelFileError):
        getattr(metadata, method)(key, None)


def test_per_layer_key_is_one_value_or_one_per_layer(metadata: TypedMetadata) -> None:
    assert metadata.per_layer_ints("int", 3) == (7, 7, 7)
    assert metadata.per_layer_ints("ints", 3) == (1, 2, 3)
    assert metadata.per_layer_ints("none", 2, (4, 4)) == (4, 4)
    with pytest.raises(ModelFileError, match="an integer or an array of 4 integers, one per layer"):
        metadata.per_layer_ints("ints", 4)
    with pytest.raises(ModelFileError, match="ints"):
        metadata.per_layer_ints("ints", 2, (4, 4))
    with pytest.raises(ModelFileError, match="strings"):
        metadata.per_layer_ints("strings", 2)
    with pytest.raises(ModelFileError, match="none"):
        metadata.per_layer_ints("none", 2)


def test_unimplemented_variant_names_key_value_and_choices(metadata: TypedMetadata) -> None:
    assert metadata.expect_str("str", ("llama", "qwen2")) == "llama"
    assert metadata.expect_int("int", (7,)) == 7
    assert metadata.expect_bool("bool", (True,)) is True
    assert metadata.expect_str("none", ("yarn",), "none") == "none"
    with pytest.raises(ModelFileError, match=r"str: must be one of 'qwen2', 'qwen3', got 'llama'"):
        metadata.expect_str("str", ("qwen2", "qwen3"))
    with pytest.raises(ModelFileError, match=r"int: must be one of 1, 2, got 7"):
        metadata.expect_int("int", (1, 2), 1)
    with pytest.raises(ModelFileError, match=r"bool: must be one of False, got True"):
        metadata.expect_bool("bool", (False,))
    with pytest.raises(ModelFileError, match=r"none: is missing"):
        metadata.expect_str("none", ("yarn",))
