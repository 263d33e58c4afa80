"""Chats to prompts: the ChatFormat protocol, and the one that runs a model's Jinja template."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2
import jinja2.meta

from luce_core.errors import ConfigError, RequestError
from luce_core.text.messages import normalise_messages
from luce_core.text.prompt import ControlGuard, Prompt, pick_marks
from luce_core.text.template_env import (
    BUDGET,
    MAX_CHARS,
    Budget,
    ChatEnvironment,
    TemplateLimit,
    TemplateRefusal,
)

MAX_TEMPLATE_BYTES = 1 << 20
TEMPLATES = Path(__file__).parent / "templates"
# Names that the server gives to templates; a request's template arguments cannot replace them.
_OWN_NAMES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
_ARGUMENTS = _OWN_NAMES | {"self", "continue_final_message"}


def template_arguments(value: Mapping[str, Any]) -> dict[str, Any]:
    """A request's `chat_template_kwargs`, fit for `render(**...)`; RequestError if one is ours."""
    for name in value:
        if name in _ARGUMENTS:
            raise _name_taken(name)
    return dict(value)


def _name_taken(name: str) -> RequestError:
    return RequestError(f"chat_template_kwargs cannot set {name!r}", param="chat_template_kwargs")


class ChatFormat(Protocol):
    """How one model wants its chats written; built once, renders many, keeps no request state."""

    @property
    def source(self) -> str:
        """Where it comes from, for /props."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """To be shown at start."""

    @property
    def takes_tools(self) -> bool:
        """Whether `render` writes the tools that it is given."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        **template_kwargs: Any,
    ) -> Prompt:
        """The prompt for a chat; RequestError (400) if it cannot be written.

        `tools` are as clients send them: `{"type": "function", "function": {...}}`.
        `template_kwargs` are a request's `chat_template_kwargs`, checked by `template_arguments`.
        """


class JinjaChatFormat:
    """Renders with a Jinja template as transformers does, in a sandbox.

    `control_words` are the tokenizer's: they are broken where they occur in request data. A
    template that does not compile makes a format whose `warnings` say so and whose `render` always
    refuses, so that the server can start and serve plain completions.
    """

    def __init__(
        self,
        template: str,
        *,
        bos_token: str,
        eos_token: str,
        source: str,
        control_words: Iterable[str] = (),
        system_anywhere: bool = False,
        warnings: Iterable[str] = (),
    ) -> None:
        self.source = source
        self.template = template
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._guard = ControlGuard(control_words)
        self._system_anywhere = system_anywhere
        self._compiled: jinja2.Template | None = None
        self._problem = ""
        environment = ChatEnvironment()
        self._reserved = _OWN_NAMES | frozenset(environment.globals)
        try:
            self._compiled = environment.from_string(template)
        except jinja2.TemplateSyntaxError as error:
            self._problem = f"line {error.lineno}: {error.message}"
        except (RecursionError, SyntaxError, ValueError) as error:
            self._problem = f"it cannot be compiled ({type(error).__name__})"
        if self._problem:
            warnings = (
                *warnings,
                f"{source}: the chat template is broken, {self._problem}: chats are refused",
            )
        self.warnings = tuple(warnings)
        self.takes_tools = self._compiled is not None and "tools" in (
            jinja2.meta.find_undeclared_variables(environment.parse(template))
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        **template_kwargs: Any,
    ) -> Prompt:
        if self._compiled is None:
            raise RequestError(
                f"this model's chat template is broken, {self._problem}",
                param="messages",
                code="chat_template",
            )
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other",
                param="continue_final_message",
            )
        for name in template_kwargs:
            if name in self._reserved:
                raise _name_taken(name)
        normal = normalise_messages(messages, system_anywhere=self._system_anywhere)
        # A template asks whether a name is defined, so null means absent.
        options = {name: value for name, value in template_kwargs.items() if value is not None}
        if tools:
            options["tools"] = [dict(tool) for tool in tools]
        guard, end_mark = pick_marks([normal, options], self.template, 2)
        if continue_final_message:
            normal[-1]["content"] += end_mark
        protected = self._guard.protect(normal, guard)
        # Templates build control words from roles: `'<|' + role + '|>'`.
        for message, original in zip(protected, normal, strict=True):
            message["role"] = original["role"]
        marked = self._run(
            guard,
            messages=protected,
            add_generation_prompt=add_generation_prompt,
            **self._tokens,
            **self._guard.protect(options, guard),
        )
        if not continue_final_message:
            return Prompt(marked, guard)
        cut = marked.rfind(end_mark)
        if cut < 0:
            raise RequestError(
                "this model's chat template does not keep the text of the last message, "
                "so it cannot be continued",
                param="continue_final_message",
                code="chat_template",
            )
        marked = marked[:cut].replace(end_mark, "")
        return Prompt(marked, guard, self._guard.tail(marked).replace(guard, ""))

    def _run(self, guard: str, **variables: Any) -> str:
        assert self._compiled is not None
        token = BUDGET.set(Budget(guard))
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._compiled.generate(**variables):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_CHARS:
                    raise TemplateLimit(
                        f"the chat template writes more than {MAX_CHARS} characters"
                    )
        except TemplateRefusal as error:
            message = error.message or "the chat template refuses these messages"
            raise RequestError(message, param="messages", code="chat_template") from error
        except jinja2.TemplateError as error:
            raise _failure(error, error.message) from error
        except Exception as error:
            # Anything a template does wrong is the request's 400; its text may show internals.
            raise _failure(error, None) from error
        finally:
            BUDGET.reset(token)
        return "".join(pieces)


def _failure(error: Exception, reason: str | None) -> RequestError:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    where = f" at line {lines[-1]}" if lines else ""
    return RequestError(
        f"the chat template failed{where}: {reason or 'it cannot handle these messages'}",
        param="messages",
        code="chat_template",
    )


def load_template_file(path: str | Path) -> str:
    """A template file as text: UTF-8 with or without a byte order mark, CRLF read as LF.

    The name of a template that ships with luce (`raw_prompt_identity.jinja`) works without a
    folder. ConfigError if it cannot be read.
    """
    file = Path(path)
    if not file.exists() and file.name == str(path) and (TEMPLATES / file.name).is_file():
        file = TEMPLATES / file.name
    try:
        data = file.read_bytes()
        if len(data) > MAX_TEMPLATE_BYTES:
            raise ConfigError(f"chat template {path}: larger than {MAX_TEMPLATE_BYTES} bytes")
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise ConfigError(f"chat template {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"chat template {path}: not UTF-8 at byte {error.start}") from error
