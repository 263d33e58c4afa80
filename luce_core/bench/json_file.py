"""The file that `--json` names: refused before the work, written after it."""

from __future__ import annotations

from pathlib import Path

import orjson

from luce_core.errors import ConfigError


def refuse_unwritable(path: Path | None) -> None:
    """ConfigError before the work if its figures could not be written."""
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"--json {path}: there is no folder {path.parent}")


def write_json(path: Path, value: object) -> None:
    """ConfigError if the file cannot be written."""
    try:
        path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise ConfigError(f"--json {path}: {error.strerror or error}") from error
