"""Values are what the tool's schema says they are; what does not fit stays a string."""

from __future__ import annotations

import json
from typing import Any

import pytest
from luce_qwen_dflash2.text.argument_types import ArgumentTypes
from luce_qwen_dflash2.text.argument_value import argument_value

from luce_core.text.tools import Tool

PYDANTIC = {
    "$defs": {"Unit": {"enum": ["C", "F"], "type": "string"}, "Span": {"type": "object"}},
    "type": "object",
    "properties": {
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "unit": {"$ref": "#/$defs/Unit"},
        "span": {"allOf": [{"$ref": "#/$defs/Span"}], "description": "x"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "ids": {"type": "array", "items": {"type": "integer"}},
        "level": {"enum": [1, 2]},
        "fixed": {"const": 5},
        "anything": {"description": "no type"},
        "either": {"type": ["string", "integer"]},
        "loop": {"$ref": "#/properties/loop"},
        "sloppy": {"type": "int"},
        "broken": {"type": 3},
    },
    "additionalProperties": {"type": "integer"},
}


def value(argument: str, text: str, schema: Any = PYDANTIC) -> str:
    """The JSON text of the value, the same whether it comes whole or in characters."""
    types = ArgumentTypes([Tool(name="f", parameters=schema, spec={})]).of("f", argument)
    results = set()
    for pieces in ([text], list(text)):
        made = argument_value(types)
        results.add("".join(made.push(piece) for piece in pieces if piece) + made.end())
    (result,) = results
    return result


@pytest.mark.parametrize(
    ("argument", "text", "expected"),
    [
        ("count", "3", 3),
        ("count", " -12\n", -12),
        ("count", "null", None),
        ("count", "None", None),
        ("count", "3.5", "3.5"),
        ("count", "true", "true"),
        ("count", "three", "three"),
        ("count", "", ""),
        ("note", "null", None),
        ("note", "nullable", "nullable"),
        ("note", "nul", "nul"),
        ("note", "", ""),
        ("note", "12", "12"),
        ("unit", "C", "C"),
        ("span", '{"a": [1, 2]}', {"a": [1, 2]}),
        ("span", "{'a': 1}", "{'a': 1}"),
        ("span", "[1]", "[1]"),
        ("ratio", "0.25", 0.25),
        ("ratio", "2", 2),
        ("ratio", "NaN", "NaN"),
        ("flag", "true", True),
        ("flag", "False", False),
        ("flag", "yes", "yes"),
        ("ids", "[1,\n 2]", [1, 2]),
        ("level", "2", 2),
        ("fixed", "5", 5),
        ("anything", "5", "5"),
        ("either", "5", "5"),
        ("loop", "5", "5"),
        ("sloppy", "5", 5),
        ("broken", "5", "5"),
        ("unlisted", "5", 5),
    ],
)
def test_values_by_schema(argument: str, text: str, expected: object) -> None:
    got = json.loads(value(argument, text))
    assert got == expected
    assert type(got) is type(expected)


def test_numbers_keep_all_their_digits() -> None:
    assert value("count", "123456789012345678901234567890") == "123456789012345678901234567890"
    assert value("ratio", "0.1000") == "0.1000"


@pytest.mark.parametrize("schema", [{}, {"properties": []}, {"properties": {"a": True}}])
def test_without_a_schema_a_value_is_a_string(schema: Any) -> None:
    assert value("a", "5", schema) == '"5"'


def test_a_schema_of_references_to_references_costs_no_more_than_its_size() -> None:
    steps = {f"s{i}": {"anyOf": [{"$ref": f"#/$defs/s{i + 1}"}] * 1000} for i in range(8)}
    schema = {"$defs": {**steps, "s8": {"type": "integer"}}, "properties": {"a": steps["s0"]}}
    assert value("a", "5", schema) == "5"


def test_deep_nesting_is_a_string() -> None:
    deep = "[" * 100_000
    assert json.loads(value("ids", deep)) == deep
