"""The Jinja environment of chat templates: what transformers offers them, sandboxed and bounded.

A template comes with a model file, so it is code from elsewhere. The sandbox keeps it away from
Python's internals; a budget of loop turns and calls, and a limit on every string it builds, keep it
from running without end. The limits are far above what real templates need.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import orjson
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import do_items
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TICKS = 1_000_000  # a loop turn or a filter takes one, a call five: a second or two in all
MAX_CHARS = 16_000_000
MAX_NUMBER = 1_000_000

# Jinja's own helpers that build unbounded text or objects and that no chat template needs.
_REMOVED_GLOBALS = ("lipsum", "cycler", "joiner")
_REMOVED_FILTERS = ("attr", "pprint", "xmlattr", "random")


class TemplateRefusal(jinja2.TemplateError):
    """The template itself refuses the messages: its `raise_exception`."""


class TemplateLimit(jinja2.TemplateError):
    """The template took too many steps or built too much text."""


@dataclass(slots=True)
class Budget:
    """What one rendering may still use, and the guard character that its data holds."""

    guard: str
    ticks: int = MAX_TICKS

    def spend(self, ticks: int = 1) -> None:
        self.ticks -= ticks
        if self.ticks < 0:
            raise TemplateLimit(f"the chat template takes more than {MAX_TICKS} steps")


BUDGET: ContextVar[Budget] = ContextVar("template_budget")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """transformers' environment, and `from_json`, which llama.cpp's templates use.

    `items` also takes a text, as one item: the arguments of a call that are no JSON object.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        for name in _REMOVED_GLOBALS:
            del self.globals[name]
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters["from_json"] = _from_json
        self.filters["items"] = _items
        for name, function in self.filters.items():
            self.filters[name] = _bounded(name, function)
        self.filters[_COUNTED] = _counted
        self.filters[_SIZED] = _sized
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["from_json"] = _from_json
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = _TemplateNamespace

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        _bound_loops(source)
        return super()._generate(source, name, filename, defer_init)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # Named as in jinja2, so that a template's keyword arguments cannot collide.
        BUDGET.get().spend(5)
        for value in (*args, *kwargs.values()):
            _check_number(value)
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            _check_growth(getattr(__obj, "__name__", ""), (text, *args))
        return _sized(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_repeat(left, right)
            _check_repeat(right, left)
        elif operator == "**":
            _check_number(left)
            if isinstance(right, int) and right > 64:
                raise TemplateLimit(f"the chat template raises a number to the power {right}")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
            for value in right if isinstance(right, tuple) else (right,):
                _check_number(value)
        return _sized(super().call_binop(context, operator, left, right))

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"access to attribute {attribute!r} is not allowed")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped


_COUNTED = "counted by luce"
_SIZED = "sized by luce"


def _bound_loops(template: nodes.Template) -> None:
    """Make every loop spend the budget, and every concatenation check its size."""
    for loop in template.find_all(nodes.For):
        loop.iter = _filtered(loop.iter, _COUNTED)
    for parent in list(template.find_all(nodes.Node)):
        for field, value in list(parent.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(parent, field, _filtered(value, _SIZED))
            elif isinstance(value, list):
                value[:] = [
                    _filtered(v, _SIZED) if isinstance(v, nodes.Concat) else v for v in value
                ]


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    wrapped = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
    wrapped.environment = node.environment
    return wrapped


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    budget = BUDGET.get()
    for value in values:
        budget.spend()
        yield value


def _sized(value: Any) -> Any:
    if isinstance(value, str | list | tuple | bytes) and len(value) > MAX_CHARS:
        raise TemplateLimit(f"the chat template builds a text of more than {MAX_CHARS} characters")
    return value


def _check_number(value: Any) -> None:
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise TemplateLimit(f"the chat template calculates with numbers above {MAX_NUMBER}")


def _check_repeat(sequence: Any, times: Any) -> None:
    if isinstance(sequence, str | list | tuple) and isinstance(times, int):
        _sized_count(len(sequence) * times)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that spends the budget and checks what goes in and comes out."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        BUDGET.get().spend()
        values = (*args, *kwargs.values())
        for value in values:
            _check_number(value)
        _check_growth(name, values)
        return _sized(function(*args, **kwargs))

    return call


def _check_growth(name: str, values: tuple[Any, ...]) -> None:
    """Refuse what would build too long a text, before it is built."""
    texts = [value for value in values if isinstance(value, str)]
    if name == "format" and texts:
        _check_format(texts[0])
    elif name == "replace" and len(texts) >= 3:
        _sized_count(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
    elif name == "join":
        between = len(texts[0]) if texts else 0
        for parts in values:
            if isinstance(parts, list | tuple):
                _sized_count(sum(len(part) + between for part in parts if isinstance(part, str)))


def _sized_count(chars: int) -> None:
    if chars > MAX_CHARS:
        raise TemplateLimit(f"the chat template builds a text of more than {MAX_CHARS} characters")


_WIDE_FIELD = re.compile(r"\d{6}")


def _check_format(text: str) -> None:
    if _WIDE_FIELD.search(text):
        raise TemplateLimit("the chat template formats with a width of six digits")


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _from_json(text: str) -> Any:
    return orjson.loads(text)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    return do_items({"arguments": value} if isinstance(value, str) else value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes. The guard character stays itself when the rest is escaped."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    guard = BUDGET.get().guard
    if ensure_ascii and guard:
        escaped = re.compile(rf"(?<!\\)((?:\\\\)*)\\u{ord(guard):04x}")
        text = escaped.sub(rf"\g<1>{guard}", text)
    return text


class _TemplateDict:
    """`dict` in templates, without the type's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _TemplateNamespace(Namespace):
    """`namespace` in templates; names that begin with an underscore are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the name {name!r}")


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks a reply for training: rendered as is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
