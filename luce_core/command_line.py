"""Command lines read by pydantic-settings, with help that is written for users."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic_settings import BaseSettings, CliSettingsSource

_Kind = TypeVar("_Kind", bound=BaseSettings)

_METAVARS = {"tuple[str,...]": "word", "tuple[int,...]": "list"}


def read_command_line(
    kind: type[_Kind], words: Sequence[str], *, program: str, usage: str, about: str
) -> _Kind:
    """Settings of `kind` from its sources, the command line first.

    --help and unknown flags end the process as argparse does; pydantic's ValidationError is the
    caller's to put into words.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's notes on our field names are for developers
        parser = argparse.ArgumentParser(
            prog=program, usage=usage, description=about, allow_abbrev=False
        )
        source = CliSettingsSource[Any](
            kind,
            cli_parse_args=list(words),
            root_parser=parser,
            add_argument_method=_add_argument,
            cli_kebab_case=True,
            cli_implicit_flags=True,
            cli_avoid_json=True,
            cli_hide_none_type=True,
        )
        return kind(_cli_settings_source=source)


def _add_argument(parser: Any, *names: str, **options: Any) -> Any:
    """argparse's `add_argument`, with help for users: no Python types, no empty defaults."""
    if options.get("metavar") in _METAVARS:
        options["metavar"] = _METAVARS[options["metavar"]]
    if options.get("help"):
        text = re.sub(r" \(default: (None|\(\)|)\)$", "", options["help"])
        numbers = re.compile(r"\(default: \((\d[\d, ]*)\)\)$")
        options["help"] = numbers.sub(lambda found: f"(default: {found[1].replace(' ', '')})", text)
    return parser.add_argument(*names, **options)
