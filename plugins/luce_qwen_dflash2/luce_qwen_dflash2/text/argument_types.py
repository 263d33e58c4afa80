"""Which JSON types a tool's schema allows for an argument, and values written as those."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from luce_core.text.tools import Tool

_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_MAX_DEPTH = 16
_WHOLE = re.compile(r"-?[0-9]+(?:\.0+)?")
# Python's words, in which Qwen's templates write the arguments of earlier calls.
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
STRING = frozenset({"string"})


class ArgumentTypes:
    """The tools of one request. Arguments without a known type are strings."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._schemas = {tool.name: _ToolSchema(tool.parameters) for tool in tools}

    def of(self, tool: str, argument: str) -> frozenset[str]:
        schema = self._schemas.get(tool)
        return STRING if schema is None else schema.types_of(argument) or STRING


class _ToolSchema:
    """One tool's parameters. Each reference is followed once, so that a schema made of references
    to references costs no more than its size."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._arguments: dict[str, frozenset[str]] = {}
        self._references: dict[str, frozenset[str]] = {}

    def types_of(self, argument: str) -> frozenset[str]:
        """What the schema allows; empty if it does not say."""
        properties = self._root.get("properties")
        schema = properties.get(argument) if isinstance(properties, Mapping) else None
        if schema is None:
            return self._types(self._root.get("additionalProperties"), 0)
        if argument not in self._arguments:
            self._arguments[argument] = self._types(schema, 0)
        return self._arguments[argument]

    def _types(self, schema: Any, depth: int) -> frozenset[str]:
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return frozenset()
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema["$ref"], depth)
        stated = schema.get("type")
        if stated is not None:
            words = stated if isinstance(stated, list) else [stated]
            return _TYPES & {_ALIASES.get(word, word) for word in words if isinstance(word, str)}
        if isinstance(schema.get("enum"), list):
            return frozenset(_type_of(value) for value in schema["enum"])
        if "const" in schema:
            return frozenset({_type_of(schema["const"])})
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                found = [self._types(branch, depth + 1) for branch in schema[word]]
                return frozenset().union(*found) if all(found) else frozenset()
        if isinstance(schema.get("allOf"), list):
            found = [t for t in (self._types(b, depth + 1) for b in schema["allOf"]) if t]
            return frozenset.intersection(*found) if found else frozenset()
        return frozenset()

    def _referred(self, reference: str, depth: int) -> frozenset[str]:
        if reference not in self._references:
            self._references[reference] = frozenset()  # what a reference to itself is
            place: Any = self._root if reference.startswith("#/") else None
            for step in reference[2:].split("/"):
                place = place.get(step) if isinstance(place, Mapping) else None
            self._references[reference] = self._types(place, depth + 1)
        return self._references[reference]


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    ):
        if isinstance(value, kind):
            return name
    return "object"


def as_json(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value that the model wrote as plain text.

    It is kept as written where it is JSON of an allowed type, else it becomes a string.
    """
    word = text.strip()
    word = _PYTHON_WORDS.get(word, word)
    try:
        kind = _type_of(orjson.loads(word))
    except orjson.JSONDecodeError:
        kind = "string"
    if kind == "number" and _WHOLE.fullmatch(word):
        kind = "integer"
    fits = kind in types or (kind == "integer" and "number" in types)
    return word if fits and kind != "string" else quoted(text)


def quoted(text: str) -> str:
    return orjson.dumps(text).decode()
