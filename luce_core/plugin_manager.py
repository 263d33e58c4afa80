"""Finds plugins, loads each on its own, and collects what they register."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import importlib_metadata
import pluggy

from luce_core import hookspecs
from luce_core.engine import SEQ_ENGINE_API, EngineSpec
from luce_core.errors import ConfigError, LuceError, PluginError
from luce_core.hookspecs import ENTRY_POINT_GROUP, PROJECT

if TYPE_CHECKING:
    from luce_core.ops.device_tools import DeviceTools
    from luce_core.ops.registry import OpRegistry


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A plugin that could not be used: it takes nothing down, and is named wherever it matters."""

    name: str
    version: str
    error: str

    @property
    def line(self) -> str:
        """For a start screen: what failed, in one line."""
        first, _, more = self.error.partition("\n")
        aside = " (luce plugins says more)" if more else ""
        return f"plugin {self.name} did not load: {first}{aside}"


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin that registered, and the hooks that it implements."""

    name: str
    version: str
    hooks: tuple[str, ...]


@dataclass(slots=True)
class Plugins:
    """What `build_plugin_manager` found."""

    manager: pluggy.PluginManager
    loaded: list[LoadedPlugin] = field(default_factory=list)
    failures: list[PluginFailure] = field(default_factory=list)

    def engines(self) -> dict[str, EngineSpec]:
        """Engine specs by name. Two of one name, or another API version, are PluginErrors."""
        specs: dict[str, EngineSpec] = {}

        def register(spec: EngineSpec) -> None:
            if not isinstance(spec, EngineSpec):
                raise PluginError(f"luce_register_engines: expected an EngineSpec, got {spec!r}")
            if spec.api_version != SEQ_ENGINE_API:
                raise PluginError(
                    f"engine {spec.name}: made for engine API {spec.api_version}, "
                    f"luce has {SEQ_ENGINE_API}; install a matching version"
                )
            if spec.name in specs:
                raise PluginError(f"engine {spec.name} is registered twice")
            specs[spec.name] = spec

        self._collect("luce_register_engines", register)
        return specs

    def register_ops(self, registry: OpRegistry) -> None:
        """Fill the registry with the ops and kernels that plugins offer."""
        self._collect("luce_register_ops", registry.register_op)
        self._collect("luce_register_kernels", registry.register_kernel)
        self._collect("luce_register_recorders", registry.register_recorder)
        for failure in self.failures:
            registry.note_failure(failure.name, PluginError(failure.error))

    def device_tools(self) -> dict[str, DeviceTools]:
        """By provider. Two of one name are a PluginError."""
        found: dict[str, DeviceTools] = {}

        def register(tools: DeviceTools) -> None:
            if tools.provider in found:
                raise PluginError(f"device tools of {tools.provider} are registered twice")
            found[tools.provider] = tools

        self._collect("luce_register_device_tools", register)
        return found

    def register_text_formats(self, register: Callable[..., None]) -> None:
        self._collect("luce_register_text_formats", register)

    def _collect(self, hook: str, register: Callable[..., None]) -> None:
        """Call one register hook plugin by plugin, so that a failure has a name.

        What a plugin offers is kept back until its hook has returned: one that fails half-way
        offers nothing.
        """
        for plugin in list(self.loaded):
            if hook not in plugin.hooks:
                continue
            module = self.manager.get_plugin(plugin.name)
            others = [p for p in self.manager.get_plugins() if p is not module]
            try:
                offers: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
                self.manager.subset_hook_caller(hook, others)(
                    register=lambda *args, _to=offers, **kwargs: _to.append((args, kwargs))
                )
                for args, kwargs in offers:
                    register(*args, **kwargs)
            except Exception as error:
                self._fail(plugin.name, plugin.version, error)
                self.loaded.remove(plugin)
                self.manager.unregister(module)

    def _fail(self, name: str, version: str, error: BaseException) -> None:
        is_ours = isinstance(error, LuceError)
        last = str(error) if is_ours else traceback.format_exception_only(error)[-1].strip()
        self.failures.append(PluginFailure(name, version, last))


def build_plugin_manager(
    names: Iterable[str] | None = None, *, discover: bool = True, plugins: Iterable[Any] = ()
) -> Plugins:
    """A fresh manager; nothing happens on import of this module.

    `names` is an allow-list of entry-point names (None: all that are installed), as LUCE_PLUGINS
    gives it; a name that is not installed is a failure. `plugins` are registered directly.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    found = Plugins(manager)
    for plugin in plugins:
        _register(found, plugin, getattr(plugin, "__name__", type(plugin).__name__), "")
    if not discover:
        return found
    wanted = None if names is None else set(names)
    points = sorted(
        importlib_metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name
    )
    for point in points:
        if wanted is not None and point.name not in wanted:
            continue
        version = point.dist.version if point.dist is not None else ""
        try:
            plugin = point.load()
        except BaseException as error:  # a plugin may even call sys.exit on import
            if isinstance(error, KeyboardInterrupt):
                raise
            found._fail(point.name, version, error)
            continue
        _register(found, plugin, point.name, version)
    for name in sorted((wanted or set()) - {point.name for point in points}):
        installed = ", ".join(point.name for point in points) or "none"
        found._fail(name, "", PluginError(f"no such plugin is installed; there is: {installed}"))
    return found


def _register(found: Plugins, plugin: Any, name: str, version: str) -> None:
    manager = found.manager
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        if manager.has_plugin(name):
            manager.unregister(name=name)
        found._fail(name, version, error)
        return
    hooks = sorted(caller.name for caller in manager.get_hookcallers(plugin) or ())
    found.loaded.append(LoadedPlugin(name, version, tuple(hooks)))


def choose_engine(
    plugins: Plugins, *, architecture: str, wanted: str | None, specs: dict[str, EngineSpec]
) -> EngineSpec:
    """The engine that was asked for by name, else the one that lists the architecture."""
    if wanted is not None:
        if wanted in specs:
            return specs[wanted]
        raise ConfigError(f"no engine {wanted!r}; {_what_there_is(plugins, specs)}")
    matching = [spec for spec in specs.values() if architecture in spec.architectures]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(spec.name for spec in matching)
        raise ConfigError(
            f"several engines take architecture {architecture!r}: {names}; choose with --engine"
        )
    raise ConfigError(
        f"no engine takes architecture {architecture!r}; {_what_there_is(plugins, specs)}"
    )


def _what_there_is(plugins: Plugins, specs: dict[str, EngineSpec]) -> str:
    offers = [f"{spec.name} ({', '.join(spec.architectures)})" for spec in specs.values()]
    text = f"installed engines: {'; '.join(offers) or 'none (try pip install luce-llama)'}"
    for failure in plugins.failures:
        text += f"\nplugin {failure.name} {failure.version} did not load: {failure.error}"
    return text
