"""`luce quantize` from options to a written file and its table."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from luce_core.errors import ConfigError
from luce_core.host_memory import usable_cores
from luce_core.quantize.convert import convert
from luce_core.quantize.options import QuantizeOptions
from luce_core.quantize.plan import Choice, choose_types
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.model_ref import resolve_model
from luce_core.weights.quant_types import quant_type


def quantize_model(options: QuantizeOptions, console: Console) -> int:
    """Write the file and print what became of it; the exit code. Raises LuceError."""
    with GgufFile.open(resolve_model(options.source), role="any") as gguf:
        choices = choose_types(gguf.path, gguf.tensors.values(), options)
        need = sum(choice.nbytes for choice in choices)
        _check_target(options, gguf.paths, need)
        console.print(sizes_table(choices))
        _say_fallbacks(choices, console)
        if options.dry_run:
            console.print(f"nothing is written: {options.target} would be about {_size(need)}")
            return 0
        began = time.monotonic()
        _convert(options, gguf, choices, need, console)
    wrote = options.target.stat().st_size
    values = sum(choice.nbytes * 8 for choice in choices)
    count = sum(_count(choice) for choice in choices)
    console.print(
        f"{options.target}: {_size(wrote)}, {values / count:.2f} bits a weight, "
        f"{time.monotonic() - began:.1f} s"
    )
    return 0


def sizes_table(choices: Sequence[Choice]) -> Table:
    """Tensors and bytes of each type, before and after."""
    before: dict[str, list[int]] = defaultdict(list)
    after: dict[str, list[int]] = defaultdict(list)
    for choice in choices:
        before[choice.tensor.qtype.name].append(choice.tensor.nbytes)
        after[choice.qtype.name].append(choice.nbytes)
    table = Table("type", show_footer=True)
    for name in ("tensors before", "size before", "tensors after", "size after"):
        table.add_column(name, justify="right")
    for name in sorted({*before, *after}, key=lambda name: -sum(after.get(name, ()))):
        table.add_row(name, *_cells(before.get(name, [])), *_cells(after.get(name, [])))
    totals = [
        cell
        for sizes in (before, after)
        for cell in _cells([size for each in sizes.values() for size in each])
    ]
    for column, text in zip(table.columns, ("all", *totals), strict=True):
        column.footer = text
    return table


def _cells(sizes: list[int]) -> tuple[str, str]:
    return (str(len(sizes)), _size(sum(sizes))) if sizes else ("", "")


def _say_fallbacks(choices: Sequence[Choice], console: Console) -> None:
    fell: dict[str, list[Choice]] = defaultdict(list)
    for choice in choices:
        if choice.fell_back:
            fell[choice.qtype.name].append(choice)
    for name, some in fell.items():
        tensor = some[0].tensor
        console.print(
            f"{len(some)} tensors are {name}, since their rows are not whole blocks of the type: "
            f"{tensor.name} with rows of {tensor.shape[-1]} values{', ...' if some[1:] else ''}"
        )


def _check_target(options: QuantizeOptions, paths: Sequence[Path], need: int) -> None:
    target = options.target
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder; name the file to write")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: there is no folder {target.parent}")
    if target.exists():
        if any(target.samefile(path) for path in paths):
            raise ConfigError(f"{target}: is the model that is read; name another file")
        if not options.force:
            raise ConfigError(f"{target}: is there already; --force replaces it")
    free = shutil.disk_usage(target.parent).free
    if need > free and not options.dry_run:
        raise ConfigError(f"{target}: needs {_size(need)}, but the disk has {_size(free)} left")


def _convert(
    options: QuantizeOptions,
    gguf: GgufFile,
    choices: Sequence[Choice],
    need: int,
    console: Console,
) -> None:
    columns = (
        TextColumn("quantising"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    hidden = not console.is_terminal  # a log or a pipe has no use for a bar
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=need)

        def written(size: int, name: str) -> None:
            bar.update(task, advance=size, description=name)

        main = quant_type(options.type_name)
        threads = options.threads or usable_cores()
        convert(gguf.path, choices, main, options.target, written, threads)


def _count(choice: Choice) -> int:
    kind = choice.tensor.qtype
    return choice.tensor.nbytes // kind.block_bytes * kind.block_values


def _size(count: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.2f} {unit}"
    return f"{count} B"
