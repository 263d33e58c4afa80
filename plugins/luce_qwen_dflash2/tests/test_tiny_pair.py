"""The trained pair that ships with the package: what it writes, and what drafting saves."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from luce_core.request import SamplingParams
from luce_core.testing.driver import Driver
from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.model_ref import resolve_model

TARGET = resolve_model("pkg:luce_qwen_dflash2/tiny-code.gguf")
DRAFT = resolve_model("pkg:luce_qwen_dflash2/tiny-code-dflash2.gguf")
MOST_BYTES = 16 << 20
BLOCKS = 128
PROMPTS = (
    "import os\nimport sys\n\ndef main(argv=None):\n",
    "class Queue:\n    def __init__(self, maxsize=0):\n",
    "    for name in names:\n        if name",
    "def read(self, size=-1):\n    if self.closed:\n        raise",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with GgufFile.open(TARGET) as gguf:
        return Tokenizer.from_metadata(gguf.metadata)


def written(engine: Any, tokenizer: Tokenizer, params: SamplingParams) -> tuple[list[Any], float]:
    """What follows each prompt, all of them at once, and tokens for each step of a request."""
    driver = Driver(engine, pool_blocks=BLOCKS)
    requests = [
        driver.submit(tokenizer.encode(prompt, parse_special=False), max_tokens=96, params=params)
        for prompt in PROMPTS
    ]
    driver.run()
    tokens = [driver.output(request).tokens for request in requests]
    accepted = sum(request.accepted for request in requests)
    steps = sum(map(len, tokens)) - accepted
    return tokens, sum(map(len, tokens)) / steps


def test_both_files_together_are_small() -> None:
    assert Path(TARGET).stat().st_size + Path(DRAFT).stat().st_size <= MOST_BYTES


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafting_changes_no_token_and_saves_steps(
    temperature: float, load: Any, tokenizer: Tokenizer, row_by_row: Any
) -> None:
    params = SamplingParams(temperature=temperature, seed=5)
    plain, _ = written(load(TARGET, registry=row_by_row(), blocks=BLOCKS), tokenizer, params)
    engine = load(TARGET, draft=DRAFT, registry=row_by_row(), blocks=BLOCKS)
    drafted, per_step = written(engine, tokenizer, params)
    assert drafted == plain
    assert per_step > (1.5 if temperature == 0.0 else 1.1)


def test_held_out_files_yield_two_and_a_half_tokens_a_pass(
    load: Any, tokenizer: Tokenizer, native_ops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy, full blocks; prompts from the middle of files that neither model was trained on."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples")
    from train_tiny_pair.data import HELD_OUT  # beside the repository's other examples

    folder = Path(sysconfig.get_path("stdlib"))
    engine = load(TARGET, draft=DRAFT, registry=native_ops(), blocks=BLOCKS)
    driver = Driver(engine, pool_blocks=BLOCKS)
    requests = []
    for name in HELD_OUT:
        ids = tokenizer.encode((folder / name).read_text(), parse_special=False)
        middle = len(ids) // 2
        requests.append(driver.submit(ids[middle : middle + 96], max_tokens=97))
    driver.run()
    behind_the_first = sum(len(request.generated) - 1 for request in requests)
    passes = behind_the_first - sum(request.accepted for request in requests)
    print(f"{behind_the_first / passes:.2f} tokens a pass")
    assert behind_the_first >= 2.5 * passes


def test_it_continues_python_with_python(load: Any, tokenizer: Tokenizer, row_by_row: Any) -> None:
    greedy = SamplingParams(temperature=0.0)
    tokens, _ = written(load(TARGET, registry=row_by_row(), blocks=BLOCKS), tokenizer, greedy)
    texts = [tokenizer.decode(list(each)) for each in tokens]
    assert all(word in " ".join(texts) for word in ("def ", "self.", "raise ")), texts
