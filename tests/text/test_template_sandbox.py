"""A template from a model file reaches nothing outside, and always comes to an end."""

from __future__ import annotations

import time

import pytest

from luce_core.errors import RequestError
from luce_core.text.chat_format import JinjaChatFormat

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ ('' | attr)('__class__') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{0.__class__}'.format_map({'0': ''}) }}",
    "{% set f = 'x'.format %}{{ ['{0.__class__}'] | map('format', '') | first }}{{ f.__self__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__['datetime'] }}",
    "{{ dict.__class__.__base__ }}",
    "{{ messages.__class__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ messages[0].pop('role') }}",
    "{{ (messages | tojson).encode().__class__ }}",
    "{% set ns = namespace(__class__='x') %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 'x' %}",
    "{{ range.__class__ }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% extends 'x' %}",
    "{{ config }}{{ request.application.__globals__ }}",
    "{% for x in (1).__class__.__base__.__subclasses__() %}{% endfor %}",
    "{{ [].__getattribute__('append') }}",
    "{% macro f() %}{% endmacro %}{{ f.__globals__ }}{{ f._func.__globals__ }}",
]

BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ range(10**9) | list }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ 10 ** 9 * 'a' }}",
    "{{ [0] * 10 ** 9 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}",
    "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% endfor %}",
    "{{ 'a'.ljust(10 ** 9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (10 ** 9, 1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 10 ** 9) }}",
    "{{ 'a' | center(10 ** 9) }}",
    "{{ 'a' | indent(10 ** 9, true) }}",
    "{{ 'a' | replace('a', 'b' * 9000000) | replace('b', 'c' * 9000000) }}",
    "{{ [1] | batch(10 ** 9, 0) | list }}",
    "{{ [1] | slice(10 ** 9) | list }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ ('a' * 9000000, 'a' * 9000000) | join('b' * 9000000) }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
]


def render(template: str) -> str:
    chat = JinjaChatFormat(template, bos_token="", eos_token="", source="test")
    return chat.render([{"role": "user", "content": "Hi"}]).text


@pytest.mark.parametrize("template", ESCAPES)
def test_known_escapes_are_refused(template: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(template)
    assert caught.value.status == 400


@pytest.mark.parametrize("template", BOMBS)
def test_endless_and_huge_templates_are_refused_in_seconds(template: str) -> None:
    started = time.monotonic()
    with pytest.raises(RequestError):
        render(template)
    assert time.monotonic() - started < 10


def test_a_refused_template_leaves_the_next_request_alone() -> None:
    chat = JinjaChatFormat(
        "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}"
        "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok",
        bos_token="",
        eos_token="",
        source="test",
    )
    with pytest.raises(RequestError, match="steps"):
        chat.render([{"role": "user", "content": "loop"}])
    assert chat.render([{"role": "user", "content": "Hi"}]).text == "ok"


def test_real_chats_are_far_below_the_limits() -> None:
    template = (
        "{% for m in messages %}{% for n in messages[:10] %}{% set x = m.content ~ n.content %}"
        "{% endfor %}{{ m.content.strip() + '\\n' }}{% endfor %}"
    )
    chat = JinjaChatFormat(template, bos_token="", eos_token="", source="test")
    messages = [{"role": "user", "content": "word " * 400}] * 1_000
    assert len(chat.render(messages).text) == 2_000_000
