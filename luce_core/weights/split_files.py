"""Models cut into several files: from any one of them to the whole set, in order.

The convention is that of llama.cpp's gguf-split: NAME-00001-of-00003.gguf counts from 1 and
`split.no` from 0; `split.tensors.count` counts the tensors of all files; metadata other than
`split.*` counts only in the first file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from luce_core.errors import ModelFileError
from luce_core.weights.gguf_check import GgufHeader
from luce_core.weights.typed_metadata import TypedMetadata

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_SHOWN_NAMES = 8


def single_model(folder: Path) -> Path:
    """The one model in a folder: its only .gguf file, or the first file of its only split set."""
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise ModelFileError(folder, "folder", f"cannot be read: {error.strerror}") from error
    names = [path.name for path in inside if path.suffix == ".gguf"]
    if not names:
        raise ModelFileError(folder, "folder", _why_none(inside))
    models = sorted({_first_of_set(name) for name in names})
    if len(models) == 1:
        # The set may lack its first file; then any other names what is missing.
        return folder / (models[0] if models[0] in names else names[0])
    shown = ", ".join(models[:_SHOWN_NAMES]) + (", ..." if len(models) > _SHOWN_NAMES else "")
    raise ModelFileError(folder, "folder", f"holds {len(models)} models, give one of: {shown}")


def whole_set(
    path: Path, header: GgufHeader, read: Callable[[Path], GgufHeader]
) -> list[tuple[Path, GgufHeader]]:
    """All files of the model that `path` is part of, first to last; `path` alone if it is whole.

    `read` reads the other files' headers. Raises ModelFileError for a missing file, and for one
    that belongs to another model or another quantisation.
    """
    count = TypedMetadata(path, header.metadata).int("split.count", 0)
    if count <= 1:
        return [(path, header)]
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelFileError(
            path,
            "split.count",
            f"this is one of {count} files, but its name does not end in "
            f"-NNNNN-of-{count:05d}.gguf, so the others cannot be found: give it its name back",
        )
    paths = [path.with_name(_name(match["stem"], number, count)) for number in range(1, count + 1)]
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        shown = ", ".join(missing[:_SHOWN_NAMES])
        raise ModelFileError(
            path, "split.count", f"{len(missing)} of {count} files are missing: {shown}"
        )
    shards = [(each, header if each == path else read(each)) for each in paths]
    _check_belonging(shards)
    return shards


def _name(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def _first_of_set(name: str) -> str:
    match = _SHARD_NAME.fullmatch(name)
    return _name(match["stem"], 1, int(match["count"])) if match else name


def _why_none(inside: Sequence[Path]) -> str:
    if any(path.suffix == ".safetensors" for path in inside):
        return (
            "holds safetensors, no .gguf file: convert the model to GGUF "
            "(llama.cpp's convert_hf_to_gguf.py)"
        )
    return "holds no .gguf file"


def _check_belonging(shards: Sequence[tuple[Path, GgufHeader]]) -> None:
    first = TypedMetadata(shards[0][0], shards[0][1].metadata)
    total = first.int("split.tensors.count", None)
    architecture = first.str("general.architecture")
    for index, (path, header) in enumerate(shards):
        metadata = TypedMetadata(path, header.metadata)
        metadata.expect_int("split.count", (len(shards),))
        metadata.expect_int("split.no", (index,))
        metadata.expect_str("general.architecture", (architecture,), None)
        if total is not None:
            metadata.expect_int("split.tensors.count", (total,), None)
    _check_tensors(shards, total)
    _check_alike(shards)


def _check_tensors(shards: Sequence[tuple[Path, GgufHeader]], total: int | None) -> None:
    owner: dict[str, Path] = {}
    for path, header in shards:
        for entry in header.tensors:
            if entry.name in owner:
                raise ModelFileError(
                    path, f"tensor {entry.name!r}", f"is also in {owner[entry.name].name}"
                )
            owner[entry.name] = path
    if total is not None and total != len(owner):
        raise ModelFileError(
            shards[0][0],
            "split.tensors.count",
            f"says {total} tensors, but the {len(shards)} files hold {len(owner)}: "
            "one of them belongs to another model",
        )


def _check_alike(shards: Sequence[tuple[Path, GgufHeader]]) -> None:
    """Refuse a file that was swapped for that of another model or quantisation.

    Nothing in the format marks such a file. But a role (`attn_q`, say) keeps its type and row
    length from layer to layer; quantisers vary a few roles per layer. So a file in which most
    roles agree with no other file of the set is a stranger.
    """
    forms = [_forms_by_role(header) for _, header in shards]
    worst: tuple[int, str] | None = None
    most = 1
    for index, form in enumerate(forms):
        others = _merged(forms[:index] + forms[index + 1 :])
        shared = [role for role in form if role in others]
        strange = [role for role in shared if not form[role] & others[role]]
        if len(strange) * 2 > len(shared) and len(strange) > most:
            worst, most = (index, strange[0]), len(strange)
    if worst is None:
        return
    index, role = worst
    others = _merged(forms[:index] + forms[index + 1 :])
    raise ModelFileError(
        shards[index][0],
        f"tensors {role!r}",
        f"are {_listed(forms[index][role])} here and {_listed(others[role])} in the other files "
        "of the set: one of them belongs to another model or quantisation",
    )


def _merged(forms: Sequence[dict[str, set[str]]]) -> dict[str, set[str]]:
    merged: dict[str, set[str]] = {}
    for form in forms:
        for role, kinds in form.items():
            merged.setdefault(role, set()).update(kinds)
    return merged


def _forms_by_role(header: GgufHeader) -> dict[str, set[str]]:
    """Type and row length of each role's matrices; vectors are F32 in every quantisation."""
    forms: dict[str, set[str]] = {}
    for entry in header.tensors:
        if len(entry.shape) > 1:
            role = re.sub(r"\d+", "N", entry.name)
            forms.setdefault(role, set()).add(f"{entry.qtype} of row length {entry.shape[-1]}")
    return forms


def _listed(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds))
