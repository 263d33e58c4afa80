"""The `luce` command. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from luce_core.errors import LuceError

if TYPE_CHECKING:
    from luce_core.plugin_manager import Plugins
    from luce_core.settings import Settings

USAGE = """\
usage: luce COMMAND [options]

Serve a local language model to several users and agents at once.

commands:
  serve MODEL     load a model and serve the OpenAI API; MODEL is a GGUF file, a folder of
                  shards, or pkg:package/file
  check MODEL     run the engine conformance tests on a model
  quantize IN OUT
                  write a model again in another quant type
  plugins         list the installed plugins, their engines and hooks
  ops             list the ops, and which provider offers kernels for them
  tune MODEL      time the tiles of GPU kernels, and write a table of the best
  bench URL       measure a server of the OpenAI API, or two in turns
  bench-step MODEL
                  show where the time of a step goes
  version         print the version

luce COMMAND --help explains a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the process's exit code. Errors that luce raises become one message."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if words else 2
    command = _COMMANDS.get(words[0])
    if command is None:
        print(f"luce: unknown command {words[0]!r}\n\n{USAGE}", end="", file=sys.stderr)
        return 2
    try:
        return command(words[1:])
    except LuceError as error:
        print(f"luce {words[0]}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _take_no_words(command: str, words: Sequence[str], about: str) -> None:
    """Answer --help, or end the process as argparse does for any other word."""
    argparse.ArgumentParser(prog=f"luce {command}", description=about).parse_args(words)


def _plugins() -> Plugins:
    from luce_core.plugin_manager import build_plugin_manager
    from luce_core.settings import ENV_OF_PLUGINS

    allowed = os.environ.get(ENV_OF_PLUGINS)
    names = (
        None if allowed is None else [name.strip() for name in allowed.split(",") if name.strip()]
    )
    return build_plugin_manager(names)


def _settings(
    words: Sequence[str],
    plugins: Plugins,
    *,
    program: str,
    extend: Callable[[type[Settings]], type[Settings]] = lambda kind: kind,
) -> Settings:
    from luce_core.settings import parse_settings, unknown_variables, with_engine_settings

    models = {
        spec.name: spec.settings for spec in plugins.engines().values() if spec.settings is not None
    }
    kind = extend(with_engine_settings(models))
    settings = parse_settings(words, kind, program=program)
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for warning in unknown_variables(os.environ, kind):
        logging.getLogger("luce").warning("%s", warning)
    return settings


def _serve(words: list[str]) -> int:
    plugins = _plugins()
    settings = _settings(words, plugins, program="luce serve")
    from luce_core.console import make_console
    from luce_core.serve import serve

    return serve(settings, plugins, make_console())


def _check(words: list[str]) -> int:
    plugins = _plugins()
    settings = _settings(words, plugins, program="luce check")
    from luce_core.testing.check_model import check_model

    return check_model(settings, plugins)


def _quantize(words: list[str]) -> int:
    from luce_core.quantize.options import parse_options

    options = parse_options(words)
    from luce_core.console import make_console
    from luce_core.quantize.command import quantize_model

    return quantize_model(options, make_console())


def _list_plugins(words: list[str]) -> int:
    _take_no_words(
        "plugins",
        words,
        "List the installed plugins, their engines and hooks, and what failed to load.",
    )
    from luce_core.console import make_console
    from luce_core.listings import plugins_table

    make_console().print(plugins_table(_plugins()))
    return 0


def _list_ops(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="luce ops", description="List the ops, and which provider offers kernels for them."
    )
    parser.add_argument(
        "--kernel-isa",
        default=os.environ.get("LUCE_KERNEL_ISA"),
        help="as luce serve would take it",
    )
    parser.add_argument(
        "--roofline",
        metavar="DEVICE",
        help="show what each op of a step must move and compute, and how fast these devices could "
        "do it: names separated by commas, as r9700,h200",
    )
    parser.add_argument("--model", help="with --roofline: only this model's steps")
    parser.add_argument("--provider", help="with --roofline: whose kernels, if several know them")
    parser.add_argument("--json", type=Path, help="with --roofline: write it to this file too")
    options = parser.parse_args(words)
    if options.roofline is not None:
        return _show_roofline(options)
    for name in ("model", "provider", "json"):
        if getattr(options, name) is not None:
            parser.error(f"--{name} needs --roofline")
    isa = options.kernel_isa
    from luce_core.console import make_console
    from luce_core.listings import ops_table
    from luce_core.load import build_registry

    make_console().print(ops_table(build_registry(_plugins()), isa))
    return 0


def _show_roofline(options: argparse.Namespace) -> int:
    from luce_core.bench.json_file import write_json
    from luce_core.console import make_console
    from luce_core.ops.device_tools import tools_of
    from luce_core.roofline_table import roofline_json, roofline_tables

    devices = tuple(name.strip() for name in options.roofline.split(","))
    tools = tools_of(_plugins().device_tools(), options.provider)
    roofline = tools.roofline(devices, options.model)
    make_console().print(roofline_tables(roofline))
    if options.json is not None:
        write_json(options.json, roofline_json(roofline))
    return 0


def _tune(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="luce tune",
        description="Time candidate tiles of the GPU kernels for a model's layers on a device, and "
        "write a table of the best for luce serve --kernel-table. Takes minutes, and a GPU that "
        "does nothing else.",
    )
    parser.add_argument("model", metavar="MODEL", help="as luce serve takes it")
    parser.add_argument("--device", default="cuda", help="cuda:N or hip:N (default: cuda)")
    parser.add_argument("--only", default="", help="kernels with this in their name")
    parser.add_argument("--out", type=Path, default=Path("kernel-table.json"), help="the table")
    parser.add_argument("--provider", help="whose kernels, if several can be tuned")
    options = parser.parse_args(words)
    from luce_core.console import make_console
    from luce_core.device import Device
    from luce_core.ops.device_tools import tools_of
    from luce_core.ops.devices import require_device
    from luce_core.weights.model_ref import resolve_model

    device = Device.parse(options.device)
    require_device(device)
    tools = tools_of(_plugins().device_tools(), options.provider)
    model = resolve_model(options.model)
    tools.tune(model, device, options.only, options.out, make_console().print)
    return 0


def _bench(words: list[str]) -> int:
    from luce_core.bench.options import parse_options

    options = parse_options(words)
    from luce_core.bench.http_bench import bench
    from luce_core.console import make_console

    return bench(options, make_console())


def _bench_step(words: list[str]) -> int:
    from luce_core.bench.step_options import with_step_options

    plugins = _plugins()
    settings = _settings(words, plugins, program="luce bench-step", extend=with_step_options)
    from luce_core.bench.step_bench import bench_step
    from luce_core.console import make_console

    return bench_step(settings, plugins, make_console())


def _version(words: list[str]) -> int:
    _take_no_words("version", words, "Print the version.")
    from importlib.metadata import version

    print(f"luce-core {version('luce-core')}")
    return 0


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "serve": _serve,
    "check": _check,
    "quantize": _quantize,
    "plugins": _list_plugins,
    "ops": _list_ops,
    "tune": _tune,
    "bench": _bench,
    "bench-step": _bench_step,
    "version": _version,
    "--version": _version,
}
