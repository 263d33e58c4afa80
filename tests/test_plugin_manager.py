"""Plugins are found, checked and kept apart; an engine that does not fit is refused by name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from luce_core.engine import (
    SEQ_ENGINE_API,
    EngineSpec,
    check_engine,
    hookimpl,
)
from luce_core.errors import ConfigError, PluginError
from luce_core.plugin_manager import Plugins, build_plugin_manager, choose_engine
from luce_core.settings import Settings, with_engine_settings
from luce_core.testing.fake_engine import FakeEngine


def spec(name: str, *architectures: str, api: int = SEQ_ENGINE_API) -> EngineSpec:
    return EngineSpec(
        name=name,
        architectures=architectures,
        build=lambda context: FakeEngine(),
        api_version=api,
    )


def plugin(*specs: EngineSpec, then: Exception | None = None) -> object:
    class Plugin:
        @hookimpl
        def luce_register_engines(self, register) -> None:
            for each in specs:
                register(each)
            if then is not None:
                raise then

    return Plugin()


def found(*plugins: object) -> Plugins:
    return build_plugin_manager(discover=False, plugins=plugins)


def named(plugin: object, name: str) -> object:
    plugin.__name__ = name  # type: ignore[attr-defined]
    return plugin


def test_nothing_is_loaded_without_being_asked() -> None:
    assert build_plugin_manager(discover=False).loaded == []


def test_an_allow_list_that_names_what_is_not_installed_says_so() -> None:
    plugins = build_plugin_manager(["no-such-plugin"])
    assert [failure.name for failure in plugins.failures] == ["no-such-plugin"]
    assert "no such plugin is installed" in plugins.failures[0].error


def test_a_hook_that_fails_half_way_offers_nothing_and_takes_nothing_down() -> None:
    bad = named(plugin(spec("half", "a"), then=RuntimeError("no driver")), "bad")
    good = named(plugin(spec("whole", "b")), "good")
    plugins = found(bad, good)
    assert list(plugins.engines()) == ["whole"]
    assert [(f.name, f.error) for f in plugins.failures] == [("bad", "RuntimeError: no driver")]
    assert [p.name for p in plugins.loaded] == ["good"]


def test_a_misspelled_hook_is_named() -> None:
    class Misspelled:
        @hookimpl
        def luce_register_engine(self, register) -> None: ...

    plugins = found(Misspelled())
    assert "luce_register_engine" in plugins.failures[0].error


def test_a_hook_may_take_fewer_arguments_but_no_others() -> None:
    class Fewer:
        @hookimpl
        def luce_request_finished(self) -> None: ...

    class Others:
        @hookimpl
        def luce_request_finished(self, answer) -> None: ...

    assert found(Fewer()).failures == []
    assert "answer" in found(Others()).failures[0].error


def test_another_api_version_is_refused_before_anything_is_built() -> None:
    plugins = found(plugin(spec("old", "a", api=99)))
    assert plugins.engines() == {}
    assert f"engine API 99, luce has {SEQ_ENGINE_API}" in plugins.failures[0].error


def test_two_engines_of_one_name_fail_by_name() -> None:
    plugins = found(named(plugin(spec("x", "a")), "one"), named(plugin(spec("x", "b")), "two"))
    assert list(plugins.engines()) == ["x"]
    assert "engine x is registered twice" in plugins.failures[0].error


def test_the_engine_is_chosen_by_name_then_by_architecture() -> None:
    plugins = found(plugin(spec("one", "a", "b"), spec("two", "b")))
    specs = plugins.engines()

    def choose(architecture: str, wanted: str | None = None) -> str:
        return choose_engine(plugins, architecture=architecture, wanted=wanted, specs=specs).name

    assert choose("a") == "one"
    assert choose("zzz", "two") == "two"
    with pytest.raises(ConfigError, match="several engines take architecture 'b': one, two"):
        choose("b")
    with pytest.raises(ConfigError, match=r"no engine takes architecture 'c'.*one \(a, b\)"):
        choose("c")
    with pytest.raises(ConfigError, match="no engine 'three'"):
        choose("a", "three")


def test_engine_settings_become_flags_and_collisions_are_refused() -> None:
    class Own(BaseModel):
        own_flag: int = 3

    class Taken(BaseModel):
        port: int = 3

    combined = with_engine_settings({"one": Own})
    assert issubclass(combined, Settings)
    assert combined.engine_fields == {"own_flag": "one"}
    with pytest.raises(PluginError, match="engine two: --port is already a flag of luce-core"):
        with_engine_settings({"two": Taken})
    with pytest.raises(PluginError, match="engine two: --own-flag is already a flag of one"):
        with_engine_settings({"one": Own, "two": Own})


# -- the engine contract -----------------------------------------------------------------------


def test_the_fake_engine_is_an_engine() -> None:
    engine = FakeEngine()
    assert check_engine(engine) is engine


class WithoutRetire(FakeEngine):
    retire = None  # type: ignore[assignment]


class Undecorated(FakeEngine):
    def commit_prefill(self, slot) -> None: ...


class WrongArguments(FakeEngine):
    @hookimpl
    def execute(self, batch): ...


class Misspelled(FakeEngine):
    @hookimpl
    def lower_plans(self, plan): ...


class WithoutAdmit(FakeEngine):
    admit = None  # type: ignore[assignment]


class WrongNeed(FakeEngine):
    @property
    def memory_need(self):
        return SimpleNamespace(bytes_per_token=1)


class OtherApi(FakeEngine):
    @property
    def capabilities(self):
        return replace(super().capabilities, api_version=7)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (WithoutRetire, "hook retire is missing"),
        (Undecorated, "hook commit_prefill lacks @hookimpl"),
        (WrongArguments, "execute"),
        (Misspelled, "lower_plans"),
        (WithoutAdmit, "method admit is missing"),
        (WrongNeed, "memory_need must be a MemoryNeed"),
        (OtherApi, "engine API 7"),
    ],
)
def test_what_does_not_fit_the_contract_is_refused_by_name(kind, message: str) -> None:
    with pytest.raises(PluginError, match=f"{kind.__name__}.*{message}|{message}") as refusal:
        check_engine(kind())
    assert kind.__name__ in str(refusal.value)
