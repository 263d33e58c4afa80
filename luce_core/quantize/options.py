"""Options of `luce quantize`. Imports no torch, so that `--help` is quick."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from luce_core.errors import ConfigError

_ABOUT = (
    "Writes a model again with its matrices in another quant type. Norms, vectors, routers, small "
    "convolutions and whatever is no float stay as they are; metadata is copied."
)


@dataclass(frozen=True, slots=True)
class TypeRule:
    """Tensors whose names a pattern is found in, and the type that they get."""

    pattern: re.Pattern[str]
    type_name: str


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """What `luce quantize` is told; the command line is its only source. Type names are ggml's, in
    upper case, and not checked yet."""

    source: str
    target: Path
    type_name: str
    output_type: str | None
    embedding_type: str | None
    rules: tuple[TypeRule, ...]
    keep: tuple[re.Pattern[str], ...]
    allow_requantize: bool
    force: bool
    threads: int | None
    dry_run: bool


def parse_options(words: Sequence[str]) -> QuantizeOptions:
    """Options from a command line; --help and unknown flags end the process as argparse does.

    A bad value is a ConfigError that names the flag.
    """
    parser = argparse.ArgumentParser(
        prog="luce quantize",
        usage="%(prog)s IN OUT --type TYPE [options]",
        description=_ABOUT,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", metavar="IN", help="GGUF file, a folder of one model, or pkg:package/file")
    add("target", metavar="OUT", type=Path, help="file to write")
    add("--type", required=True, metavar="TYPE", help="type of the matrices, as Q8_0 or ROCMFP4")
    add(
        "--output-type",
        metavar="TYPE",
        help="type of output.weight (default: Q8_0 where TYPE has fewer bits)",
    )
    add(
        "--embedding-type",
        metavar="TYPE",
        help="type of token_embd.weight (default: the same)",
    )
    add(
        "--tensor-type",
        action="append",
        default=[],
        metavar="PATTERN=TYPE",
        help="type of the matrices whose names the regular expression is found in, as "
        "ffn_down=ROCMFP3; may be repeated, the first that fits counts",
    )
    add(
        "--keep",
        action="append",
        default=[],
        metavar="PATTERN",
        help="tensors to leave as they are; may be repeated",
    )
    add(
        "--allow-requantize",
        action="store_true",
        help="take tensors that are quantised already: errors add up",
    )
    add("--force", action="store_true", help="replace OUT")
    add("--threads", type=int, metavar="N", help="default: every core that may be used")
    add("--dry-run", action="store_true", help="say what would be written, and write nothing")
    chosen = parser.parse_args(words)
    if chosen.threads is not None and chosen.threads < 1:
        raise ConfigError(f"--threads: must be at least 1, got {chosen.threads}")
    return QuantizeOptions(
        source=chosen.source,
        target=chosen.target.expanduser(),
        type_name=chosen.type.upper(),
        output_type=_upper(chosen.output_type),
        embedding_type=_upper(chosen.embedding_type),
        rules=tuple(_rule(word) for word in chosen.tensor_type),
        keep=tuple(_pattern("--keep", word) for word in chosen.keep),
        allow_requantize=chosen.allow_requantize,
        force=chosen.force,
        threads=chosen.threads,
        dry_run=chosen.dry_run,
    )


def _upper(name: str | None) -> str | None:
    return None if name is None else name.upper()


def _rule(word: str) -> TypeRule:
    pattern, equals, name = word.rpartition("=")
    if not (pattern and equals and name):
        raise ConfigError(f"--tensor-type: must be PATTERN=TYPE, got {word!r}")
    return TypeRule(_pattern("--tensor-type", pattern), name.upper())


def _pattern(flag: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"{flag}: {text!r} is no regular expression: {error}") from None
