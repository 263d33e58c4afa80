"""Options of `luce bench`. Imports neither torch nor plugins, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    CliPositionalArg,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from luce_core.command_line import read_command_line
from luce_core.errors import ConfigError
from luce_core.server.origins import is_loopback

Counts = Annotated[tuple[int, ...], NoDecode]

_MOST_CLIENTS = 1024
_ABOUT = (
    "Measures a server that speaks the OpenAI API: how many tokens it yields and how long clients "
    "wait, by the number of clients at once."
)


def split_counts(value: object) -> object:
    """`1,2,4` as a tuple, for fields of type Counts."""
    return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value


class BenchOptions(BaseSettings):
    """What `luce bench` is told; the command line is its only source."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=True)

    url: CliPositionalArg[str] = Field("", description="server, as http://127.0.0.1:8080")
    vs: str | None = Field(None, description="second server, measured in turns with the first")
    api: Literal["chat", "completions"] = Field("completions", description="which route")
    model: str | None = Field(None, description="model name; default: the first one listed")
    key: str | None = Field(None, description="API key")
    remote: bool = Field(False, description="allow a server on another machine")

    levels: Counts = Field((1, 2, 4, 5, 8), description="clients at once, as 1,2,4")
    tokens: int = Field(128, ge=1, le=1 << 20, description="output tokens of each answer")
    prompt_tokens: int = Field(
        0, ge=0, le=1 << 20, description="pad prompts to this length; 0: as they are"
    )
    join: int = Field(
        0, ge=0, le=1 << 20, description="while the clients decode, a prompt of this length joins"
    )
    mode: Literal["waves", "loop"] = Field(
        "waves", description="all clients at once and again, or each without a pause"
    )
    rounds: int = Field(1, ge=1, le=10_000, description="answers per client in a measurement")
    repeats: int = Field(3, ge=1, le=1000, description="measurements of each level")
    warmup: int = Field(1, ge=0, le=100, description="discarded rounds before the first level")
    seed: int | None = Field(
        None, ge=0, lt=1 << 31, description="of prompts and requests; default: another each time"
    )
    timeout: float = Field(600.0, gt=0, description="s for one answer")
    keepalive: bool = Field(False, description="reuse connections instead of a fresh one each")
    json_file: Path | None = Field(None, alias="json", description="write every figure there")

    @field_validator("levels", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_counts(value)

    @field_validator("levels")
    @classmethod
    def _in_range(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or not all(1 <= clients <= _MOST_CLIENTS for clients in value):
            raise ValueError(f"give numbers from 1 to {_MOST_CLIENTS}")
        return value

    @field_validator("url", "vs")
    @classmethod
    def _is_server(cls, value: str | None) -> str | None:
        return None if value is None else server_base(value)

    @model_validator(mode="after")
    def _stays_here(self) -> BenchOptions:
        for url in self.servers:
            host = urlsplit(url).hostname or ""
            if not (self.remote or is_loopback(host)):
                raise ValueError(
                    f"{host} is another machine, which gets a heavy load: give --remote if that "
                    "is meant"
                )
        return self

    @property
    def servers(self) -> tuple[str, ...]:
        """One or two base URLs, without `/v1`."""
        return (self.url,) if self.vs is None else (self.url, self.vs)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def server_base(url: str) -> str:
    """The URL without a trailing `/v1` or slash. ValueError if it is no http URL with a host."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("name a server, as http://127.0.0.1:8080")
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError("give host, port and path only")
    return parts.geturl().rstrip("/").removesuffix("/v1")


def parse_options(words: Sequence[str]) -> BenchOptions:
    """Options from a command line; --help and unknown flags end the process as argparse does.

    A bad value is a ConfigError that names the flag.
    """
    try:
        return read_command_line(
            BenchOptions,
            words,
            program="luce bench",
            usage="%(prog)s URL [--vs URL2] [options]",
            about=_ABOUT,
        )
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error))) from error


def _problems(error: ValidationError) -> list[str]:
    lines = []
    for item in error.errors(include_url=False):
        problem = item["msg"].removeprefix("Value error, ")
        name = str(item["loc"][0]) if item["loc"] else ""
        if name == "":
            lines.append(problem)
        elif name == "url" and not item["input"]:
            lines.append(f"no server given: {problem}")
        else:
            flag = name if name == "url" else "--" + name.replace("_", "-")
            lines.append(f"{flag}: {problem}, got {item['input']!r}")
    return lines
