"""Chat templates run as in transformers; what they refuse or get wrong is the request's 400."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from luce_core.errors import ConfigError, RequestError
from luce_core.text import template_env
from luce_core.text.chat_format import (
    TEMPLATES,
    JinjaChatFormat,
    load_template_file,
    template_arguments,
)
from luce_core.text.output_parser import PieceKind, think_parser
from luce_core.text.tokenizer import Tokenizer

USER = {"role": "user", "content": "Hi"}
CHATML = load_template_file("chatml.jinja")
STRICT = """{%- if messages[0].role != 'system' %}
{{- raise_exception('No system prompt.') }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}
{%- endif %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}"""


def make(template: str, **options: Any) -> JinjaChatFormat:
    options.setdefault("control_words", ("<|im_start|>", "<|im_end|>"))
    return JinjaChatFormat(
        template, bos_token="<s>", eos_token="</s>", source="the test", **options
    )


def render(template: str, *messages: dict[str, Any], **kwargs: Any) -> str:
    return make(template).render(messages or (USER,), **kwargs).text


def refusal(template: str, *messages: dict[str, Any], **kwargs: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        render(template, *messages, **kwargs)
    assert caught.value.status == 400
    assert caught.value.code != "context_length_exceeded"
    return caught.value


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c", "abHic"),
        ("{{ '{\"a\": [1]}' | from_json }}", "{'a': [1]}"),
        ("{{ from_json('[1]')[0] }}", "1"),
        ("{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for k, v in '{bad' | items %}{{ k }}={{ v }}{% endfor %}", "arguments={bad"),
        ("{% for k, v in nothing | items %}{{ k }}{% endfor %}", ""),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ tools is defined }} {{ tools is none }} {{ tools | length }}", "False False 0"),
        ("{% if tools %}x{% endif %}{{ documents is defined }}", "False"),
        ("{{ {'a': '<é\\'>'} | tojson }}", '{"a": "<é\'>"}'),
        ("{{ [1, 2] | tojson(indent=1, separators=(',', ':')) }}", "[\n 1,\n 2\n]"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
         "{% endfor %}{{ ns.n }}", "1"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ messages[0]['content'][:1] ~ '!' * 3 }}", "H!!!"),
        ("{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}{% endfor %}",
         "0True1"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') + f('b') }}", "[a][b]"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '{}'.format('b') }}{{ dict(a=1).a }}", "a-3b1"),
    ],
)  # fmt: skip
def test_templates_find_what_transformers_offers(template: str, expected: str) -> None:
    assert render(template) == expected


def test_plain_templates_render_as_in_transformers() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": '1 < 2 & "é" 漢 👍\n'},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Why?"},
    ]
    for template in (CHATML, STRICT, "{{ messages | tojson(indent=2) }}"):
        for add in (True, False):
            (expected,), _ = render_jinja_template(
                [messages], chat_template=template, add_generation_prompt=add
            )
            got = make(template, control_words=()).render(messages, add_generation_prompt=add)
            assert got.text == expected


def test_the_date_is_that_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = make("{{ strftime_now('%d %b %Y') }}")

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime(2031, 2, 3)

    monkeypatch.setattr(template_env, "datetime", Later)
    assert chat.render([USER]).text == "03 Feb 2031"


def test_a_broken_template_starts_the_server_and_refuses_chats_by_line() -> None:
    chat = make("ok\n{% if %}\n")
    (warning,) = chat.warnings
    assert "line 2" in warning
    assert "the test" in warning
    with pytest.raises(RequestError, match="line 2") as caught:
        chat.render([USER])
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "template", ["{{ x | nosuchfilter }}", "{{ '" + "(" * 10, "{{" + "(" * 9999]
)
def test_other_broken_templates_do_not_raise_at_start(template: str) -> None:
    assert make(template).warnings


def test_a_refusal_is_the_templates_own_sentence() -> None:
    late = [{"role": "system", "content": "a"}, USER, {"role": "system", "content": "b"}]
    assert refusal(STRICT, *late).message == "System message must be at the beginning."
    assert refusal(STRICT, USER).message == "No system prompt."


def test_a_template_error_names_the_line_and_no_internals() -> None:
    error = refusal("a\n{{ messages[0].content.nope() }}")
    assert "line 2" in error.message
    for template in ("{{ 1 // 0 }}", "{{ messages | sum }}", "{{ 'x' | int + 'y' }}"):
        message = refusal(template).message
        assert "Traceback" not in message
        assert "0x" not in message
        assert "Error" not in message


def test_system_anywhere_keeps_the_ids_of_earlier_turns(smollm2: Tokenizer) -> None:
    head = [{"role": "system", "content": "a"}, USER, {"role": "assistant", "content": "Hello."}]
    chat = make(STRICT, control_words=smollm2.control_words, system_anywhere=True)
    before = smollm2.encode_prompt(chat.render(head, add_generation_prompt=False))
    late = [*head, {"role": "system", "content": "b"}]
    after = smollm2.encode_prompt(chat.render(late, add_generation_prompt=False))
    assert after[: len(before)] == before
    assert smollm2.decode(after[len(before) :]) == "user\nb\n"


def continued(text: str, template: str = CHATML, *before: dict[str, Any]) -> str:
    messages = (*before, USER, {"role": "assistant", "content": text})
    return render(template, *messages, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize("text", ["The capital of France is", "x\n\n", "x ", "", "<|im_end|>", "<"])
def test_a_continued_prompt_ends_with_the_last_message(text: str) -> None:
    expected = f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{text}"
    assert continued(text) == expected


def test_a_continued_prompt_keeps_newlines_that_the_template_trims() -> None:
    template = CHATML.replace("message['content']", "message['content'] | trim")
    assert continued("x\n\n", template).endswith("assistant\nx\n\n")


def test_a_continued_prompt_is_cut_at_the_last_place() -> None:
    earlier = {"role": "assistant", "content": "same"}
    text = continued("same", CHATML, USER, earlier)
    assert text.count("same") == 2
    assert text.endswith("<|im_start|>assistant\nsame")


def test_continue_and_generation_prompt_exclude_each_other() -> None:
    error = refusal(CHATML, USER, continue_final_message=True)
    assert error.param == "continue_final_message"


def test_a_template_that_drops_the_text_cannot_be_continued() -> None:
    error = refusal("x", USER, add_generation_prompt=False, continue_final_message=True)
    assert error.param == "continue_final_message"


def test_a_continued_thought_is_parsed_as_reasoning() -> None:
    messages = [USER, {"role": "assistant", "content": "<think>\nplan"}]
    prompt = make(CHATML).render(messages, add_generation_prompt=False, continue_final_message=True)
    parser = think_parser(prompt)
    assert parser.push("more</think>done") == [
        (PieceKind.REASONING, "more"),
        (PieceKind.CONTENT, "done"),
    ]
    # What a user writes about tags does not count.
    talk = make(CHATML).render([{"role": "user", "content": "what is <think>?"}])
    assert think_parser(talk).push("hi") == [(PieceKind.CONTENT, "hi")]


@pytest.mark.parametrize("name", ["messages", "bos_token", "raise_exception", "range"])
def test_template_arguments_cannot_replace_our_names(name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        make(CHATML).render([USER], **{name: "x"})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "continue_final_message"])
def test_arguments_are_checked_before_they_become_keywords(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        template_arguments({name: True})
    assert template_arguments({"enable_thinking": False}) == {"enable_thinking": False}


def test_a_null_template_argument_is_absent() -> None:
    assert render("{{ tools is defined }}{{ x is defined }}", tools=None, x=False) == "FalseTrue"


def test_raw_identity_adds_nothing() -> None:
    template = load_template_file("raw_prompt_identity.jinja")
    assert render(template, {"role": "user", "content": " a\n<b>\n"}) == " a\n<b>\n"
    assert render(template, USER, {"role": "assistant", "content": "\n"}) == "Hi\n"


def test_template_files_may_have_a_mark_and_crlf(tmp_path: Path) -> None:
    folder = tmp_path / "mit Leerzeichen é\\x"
    folder.mkdir()
    path = folder / "t.jinja"
    path.write_bytes(b"\xef\xbb\xbf" + CHATML.replace("\n", "\r\n").encode())
    assert load_template_file(path) == CHATML
    with pytest.raises(ConfigError, match="nope"):
        load_template_file(tmp_path / "nope.jinja")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_template_file(path)
    path.write_bytes(b"x" * (1 << 21))
    with pytest.raises(ConfigError, match="larger"):
        load_template_file(path)


def test_template_files_do_not_depend_on_the_platforms_encoding(tmp_path: Path) -> None:
    path = tmp_path / "é.jinja"
    path.write_text("é漢{{ messages[0].content }}", encoding="utf-8")
    code = (
        "import sys; from luce_core.text.chat_format import load_template_file as load;"
        "print(ascii(load(sys.argv[1])))"
    )
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code, os.fsencode(path)],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
    )
    assert b"\\xe9\\u6f22{{ messages" in done.stdout


def test_shipped_templates_are_package_data() -> None:
    assert {p.name for p in TEMPLATES.iterdir()} >= {"raw_prompt_identity.jinja", "chatml.jinja"}
