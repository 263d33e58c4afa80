"""A small chat template with Qwen's markup, and tools to call."""

from __future__ import annotations

from typing import Any

from luce_qwen_dflash2.text import register_text_formats

from luce_core.testing.fake_server import byte_text
from luce_core.text.formats import ModelText, TextFormats
from luce_core.text.tools import Tool

TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nTools:' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\\n' }}
{{- value if value is string else value | tojson }}
{{- '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""


def function(name: str, **properties: Any) -> dict[str, Any]:
    """A tool as a client sends it."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = function("weather", city={"type": "string"}, days={"type": "integer"})
SEARCH = function("search", query={"type": "string"}, filters={"type": "object"})


def tool(spec: dict[str, Any]) -> Tool:
    inner = spec["function"]
    return Tool(name=inner["name"], parameters=inner["parameters"], spec=spec)


def qwen_text(template: str = TEMPLATE, architecture: str = "qwen35") -> ModelText:
    """The plugin's text format on the byte vocabulary."""
    formats = TextFormats()
    register_text_formats(formats.register)
    return byte_text(parser="auto", template=template, formats=formats, architecture=architecture)
