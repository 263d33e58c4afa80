"""The words of DeepSeek V4's chat markup (the model's own `encoding` description).

`DSML` is a token of its own in the vocabulary; the others but the tags of results are, too.
"""

from __future__ import annotations

USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
END = "<｜end▁of▁sentence｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"

CALLS = f"<{DSML}tool_calls>"
END_CALLS = f"</{DSML}tool_calls>"
INVOKE = f"<{DSML}invoke"
END_INVOKE = f"</{DSML}invoke>"
PARAMETER = f"<{DSML}parameter"
END_PARAMETER = f"</{DSML}parameter>"
RESULT = "<tool_result>"
END_RESULT = "</tool_result>"

MAX_EFFORT = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve \
the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and \
adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, \
considered alternative, and rejected hypothesis to ensure absolutely no assumption is left \
unchecked.

"""

TOOLS_HEAD = f"""\
## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "{CALLS}" block like the following:

{CALLS}
{INVOKE} name="$TOOL_NAME">
{PARAMETER} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE{END_PARAMETER}
...
{END_INVOKE}
{INVOKE} name="$TOOL_NAME2">
...
{END_INVOKE}
{END_CALLS}

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning \
inside {THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

"""

TOOLS_TAIL = """
You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
