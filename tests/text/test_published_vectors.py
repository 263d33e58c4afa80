"""Optional: the vocabularies, test vectors and templates in llama-cpp-python's source package.

They are not part of this repository. Unpack the sdist and point LUCE_TEST_LLAMA_CPP_MODELS at its
`vendor/llama.cpp/models`:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gguf import GGUFReader

from luce_core.errors import RequestError
from luce_core.text.chat_format import JinjaChatFormat, load_template_file
from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.typed_metadata import TypedMetadata

pytestmark = pytest.mark.slow
VARIABLE = "LUCE_TEST_LLAMA_CPP_MODELS"


@pytest.fixture
def models() -> Path:
    folder = os.environ.get(VARIABLE)
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"{VARIABLE} does not name the models folder of an unpacked sdist")
    return Path(folder)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama-bpe", 47),
        ("qwen2", 47),
        ("qwen35", 51),
        ("gpt-2", 47),
        ("starcoder", 47),
        ("refact", 47),
        ("llama-spm", 47),
        ("phi-3", 47),
    ],
)
def test_ids_equal_the_published_vectors(models: Path, name: str, count: int) -> None:
    path = models / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"the source package has no {path.name}")
    fields = GGUFReader(path).fields
    values = {k: f.contents() for k, f in fields.items() if k.startswith("tokenizer.")}
    # The vectors are made without normalisation.
    tokenizer = Tokenizer.from_metadata(TypedMetadata(path, values), nfc=False)
    with open(f"{path}.inp", encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().split("\n")
    assert len(texts) == count
    for text, line in zip(texts, lines, strict=False):
        ids = tokenizer.encode(text, parse_special=False)
        assert ids == [int(word) for word in line.split()], text
        assert tokenizer.decode(ids) == text


def test_at_least_69_of_70_published_templates_render(models: Path) -> None:
    files = sorted((models / "templates").glob("*.jinja"))
    assert len(files) == 70
    failed = []
    for file in files:
        chat = JinjaChatFormat(
            load_template_file(file), bos_token="<s>", eos_token="</s>", source=file.name
        )
        try:
            chat.render([{"role": "user", "content": "Hello"}])
        except RequestError as error:
            failed.append((file.name, error.message))
    assert len(failed) <= 1, failed


def test_refusals_of_a_published_template_are_its_own_sentences(models: Path) -> None:
    template = load_template_file(models / "templates" / "Qwen3.5-4B.jinja")
    chat = JinjaChatFormat(template, bos_token="", eos_token="", source="test")
    user = {"role": "user", "content": "a"}
    with pytest.raises(RequestError, match="System message must be at the beginning"):
        chat.render([user, {"role": "system", "content": "b"}])
    with pytest.raises(RequestError, match="No user query found"):
        chat.render([{"role": "system", "content": "b"}])
