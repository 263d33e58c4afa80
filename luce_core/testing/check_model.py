"""`luce check MODEL`: the conformance tests on a real file, from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from luce_core.errors import ConfigError
from luce_core.load import LoadedModel, load_model, open_model
from luce_core.plugin_manager import Plugins
from luce_core.settings import Settings

if TYPE_CHECKING:
    from luce_core.testing.engine_conformance import EngineUnderTest


def check_model(settings: Settings, plugins: Plugins) -> int:
    """Load the model as `serve` would, run the tests, print their report; pytest's exit code."""
    try:
        import pytest  # extra `testing`
    except ImportError as error:
        raise ConfigError("luce check needs pytest: pip install 'luce-core[testing]'") from error
    from luce_core.testing import engine_conformance

    opened = open_model(settings, plugins)
    loaded = load_model(opened, plugins, lambda done, total, what: None)
    subject = describe_subject(loaded)

    class Fixtures:
        @pytest.fixture(scope="module")
        @classmethod
        def engine_under_test(cls) -> engine_conformance.EngineUnderTest:
            return subject

    without = ["-p", "no:cacheprovider", "-p", "no:asyncio"]  # they write files and warnings
    arguments = [*without, "-c", "/dev/null", "--rootdir", "/", "-v", "-rs"]
    try:
        return int(pytest.main([*arguments, engine_conformance.__file__], plugins=[Fixtures()]))
    finally:
        loaded.engine.close()


def describe_subject(loaded: LoadedModel) -> EngineUnderTest:
    """An EngineUnderTest of a loaded model; exact if every bound op declares both levels."""
    from luce_core.testing.engine_conformance import EngineUnderTest  # needs pytest

    tokenizer = loaded.opened.text.tokenizer
    words = tokenizer.encode("The quick brown fox jumps over 12 lazy dogs.", parse_special=False)
    return EngineUnderTest(
        engine=loaded.engine,
        pool_blocks=loaded.pool.blocks,
        prompt_ids=words,
        exact=all(b.row_invariant and b.split_invariant for b in loaded.ops.bound)
        and bool(loaded.ops.bound),
    )
