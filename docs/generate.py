"""Writes the parts of docs/ that come from the code: `make docs`.

A page holds `<!-- begin NAME -->` ... `<!-- end NAME -->`; what stands between is replaced. A test
compares every page with what this would write.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType, NoneType
from typing import Any, Literal, Union, get_args, get_origin

import luce_deepseek_v4
import luce_qwen_dflash2
from luce_kernels_rocm.roofline.build import roofline
from pydantic.fields import FieldInfo

from luce_core import hookspecs
from luce_core.engine import (
    DraftContext,
    EngineCapabilities,
    EngineHooks,
    EngineSpec,
    LoadContext,
    SeqEngine,
)
from luce_core.ops.core_ops import CORE_OPS
from luce_core.ops.device_tools import OpCost
from luce_core.ops.spec import ArgSpec, OpSpec
from luce_core.roofline_table import limits_us
from luce_core.server.unsupported import CHAT_ONLY, COMPLETION_ONLY, SHARED_FIELDS
from luce_core.settings import ENV_PREFIX, Settings

DOCS = Path(__file__).parent
_BLOCK = re.compile(r"(<!-- begin ([\w-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
_ROW_AXIS = {"tokens": "T", "logits": "L", "segments": "S", "any": "R"}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


# -- settings ----------------------------------------------------------------------------------


def settings_table() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        is_model = name == "model"  # the one positional argument
        flag = "MODEL" if is_model else "--" + name.replace("_", "-")
        variable = f"`{ENV_PREFIX}{name.upper()}`"
        default = "required" if is_model else _shown(field.default)
        rows.append((f"`{flag}`", variable, default, accepted(field), described(field)))
    return table(("flag", "variable", "default", "accepts", "what it does"), rows)


def _shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`"


def described(field: FieldInfo) -> str:
    assert field.description is not None
    return re.sub(r"(<\w+>)", r"`\1`", field.description)


def accepted(field: FieldInfo) -> str:
    """What a value may be, in words."""
    kind = _without_none(field.annotation)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(kind))
    if get_origin(kind) is tuple:
        return "words, comma-separated or repeated"
    if kind is bool:
        return "flag or its `--no-` form" if field.default is False else "only on"
    if any(getattr(each, "func", None) is not None for each in field.metadata):
        return f"only `{field.default}`"
    least = _bound(field, "ge")
    above = _bound(field, "gt")
    most = _bound(field, "le")
    word = {int: "integer", float: "seconds", Path: "path", str: "text"}[kind]
    if kind is float and (least, most) == (0, 1):
        word = "fraction"
    if least is not None and most is not None:
        return f"{word}, {least} to {most}"
    if least is not None:
        return f"{word}, at least {least}"
    return word if above is None else f"{word}, above {above}"


def _without_none(annotation: Any) -> Any:
    kinds = [each for each in get_args(annotation) if each is not NoneType]
    is_optional = NoneType in get_args(annotation) and get_origin(annotation) is not Union
    return kinds[0] if is_optional and len(kinds) == 1 else annotation


def _bound(field: FieldInfo, name: str) -> object:
    return next((getattr(each, name) for each in field.metadata if hasattr(each, name)), None)


# -- ops ---------------------------------------------------------------------------------------


def ops_sections(specs: Iterable[OpSpec] = CORE_OPS) -> str:
    return "\n".join(_op_section(spec) for spec in sorted(specs, key=lambda spec: spec.name))


def plugin_ops_sections(plugin: ModuleType) -> Callable[[], str]:
    def sections() -> str:
        specs: list[OpSpec] = []
        plugin.luce_register_ops(specs.append)
        return ops_sections(specs)

    return sections


def _op_section(spec: OpSpec) -> str:
    levels = [
        word
        for word, declared in (("rows", spec.row_invariant), ("splits", spec.split_invariant))
        if declared
    ]
    tolerances = ", ".join(
        f"{str(dtype).removeprefix('torch.')} {limits.atol:g} + {limits.rtol:g} x"
        for dtype, limits in spec.tolerance.items()
    )
    facts = [f"`{fact}`" for fact in spec.facts]
    facts += [f"`{fact}={value!r}`" for fact, value in spec.optional_facts.items()]
    rows = [(f"`{arg.name}`", arg.kind.value, _shape(arg), _remark(arg)) for arg in spec.args]
    if spec.out is not None:
        dtype = "" if spec.out.dtype is None else str(spec.out.dtype).removeprefix("torch.")
        rows.append(("`out`", "output", f"`{_out_shape(spec)}`", dtype))
    return (
        f"### {spec.name}\n\n{spec.doc}\n\n"
        f"{table(('argument', 'from', 'shape', ''), rows)}\n"
        f"* Facts: {', '.join(facts) or 'none'}.\n"
        f"* Tolerance: {'equal bits' if _is_exact(spec) else tolerances}.\n"
        f"* The reference is invariant to: {', '.join(levels) or 'neither rows nor splits'}.\n"
    )


def _shape(arg: ArgSpec) -> str:
    return f"`[{', '.join(arg.shape)}]`" if arg.shape else ""


def _remark(arg: ArgSpec) -> str:
    return ", ".join(
        word for word, holds in (("written", arg.written), ("optional", arg.optional)) if holds
    )


def _out_shape(spec: OpSpec) -> str:
    """The shape that the reference states beside its `out`."""
    found = re.search(
        r"\bout: Tensor,\s*# (\[[^\]]*\]|like \w+)", inspect.getsource(spec.reference)
    )
    if found is None:
        raise SystemExit(f"op {spec.name}: the reference does not state the shape of `out`")
    return found[1]


def _is_exact(spec: OpSpec) -> bool:
    return all(limits.atol == limits.rtol == 0 for limits in spec.tolerance.values())


# -- hooks -------------------------------------------------------------------------------------


def process_hooks() -> str:
    found = [function for function in vars(hookspecs).values() if hasattr(function, "luce_spec")]
    return "\n".join(_hook_section(function) for function in found)


def engine_hooks() -> str:
    found = [each for each in vars(EngineHooks).values() if hasattr(each, "luce_spec")]
    return "\n".join(_hook_section(function) for function in found)


def engine_methods() -> str:
    sections = []
    for name, member in vars(SeqEngine).items():
        if isinstance(member, property):
            assert member.fget is not None
            kind = inspect.signature(member.fget).return_annotation
            sections.append(f"### {name} -> {_plain(kind)}\n\n{inspect.getdoc(member)}\n")
        elif isinstance(member, FunctionType) and member.__doc__ and not name.startswith("_"):
            sections.append(_hook_section(member))
    return "\n".join(sections)


def _hook_section(function: Callable[..., object]) -> str:
    return f"### {signature(function)}\n\n{inspect.getdoc(function)}\n"


def signature(function: Callable[..., object]) -> str:
    """`name(argument: Type) -> Type`, without self."""
    found = inspect.signature(function)
    arguments = [
        f"{name}: {_plain(value.annotation)}"
        for name, value in found.parameters.items()
        if name != "self"
    ]
    return f"{function.__name__}({', '.join(arguments)}) -> {_plain(found.return_annotation)}"


def _plain(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "None")


def record_table(kind: type) -> Callable[[], str]:
    def fields() -> str:
        defaults = inspect.signature(kind).parameters
        return table(
            ("field", "type", "default"),
            (
                (
                    f"`{name}`",
                    f"`{_plain(value.annotation)}`",
                    "" if value.default is inspect.Parameter.empty else f"`{value.default!r}`",
                )
                for name, value in defaults.items()
            ),
        )

    return fields


# -- requests ----------------------------------------------------------------------------------


def refused_fields() -> str:
    routes = (("both", SHARED_FIELDS), ("chat", CHAT_ONLY), ("completions", COMPLETION_ONLY))
    return table(
        ("field", "route", "accepted all the same"),
        (
            (f"`{field}`", route, ", ".join(f"`{value!r}`" for value in values) or "only null")
            for route, fields in routes
            for field, values in fields.items()
        ),
    )


# -- pages -------------------------------------------------------------------------------------

# -- kernels -----------------------------------------------------------------------------------


def roofline_sections() -> str:
    """For each model: what the ops of its steps must move, and what our programs ask for."""
    shown = roofline(("r9700", "strix-halo", "h200"), None)
    sections = []
    for model in dict.fromkeys(step.model for step in shown.steps):
        steps = [step for step in shown.steps if step.model == model]
        head = ["op", "of what"]
        for step in steps:
            head += [f"{step.step}: least MB", "moved / least"]
        head += [f"{step.step}: limit us" for step in steps]
        rows = []
        for costs in zip(*(step.ops for step in steps), strict=True):
            cells = [costs[0].op, costs[0].what]
            for cost in costs:
                least = cost.calls * cost.least.read_bytes / 1e6
                cells += [f"{least:.3g}", _ratio(cost)]
            cells += [" / ".join(f"{us:.3g}" for us in limits_us(shown, cost)) for cost in costs]
            rows.append(cells)
        sections.append(f"### {model}\n\n{table(head, rows)}")
    return "\n".join(sections)


def _ratio(cost: OpCost) -> str:
    ratio = cost.moved_over_least
    return "-" if ratio is None else f"{ratio:.2f}"


BLOCKS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "settings": settings_table,
        "ops": ops_sections,
        "roofline": roofline_sections,
        "qwen-ops": plugin_ops_sections(luce_qwen_dflash2),
        "deepseek-ops": plugin_ops_sections(luce_deepseek_v4),
        "process-hooks": process_hooks,
        "engine-hooks": engine_hooks,
        "engine-methods": engine_methods,
        "engine-spec": record_table(EngineSpec),
        "load-context": record_table(LoadContext),
        "draft-context": record_table(DraftContext),
        "capabilities": record_table(EngineCapabilities),
        "refused-fields": refused_fields,
    }
)


def fresh(text: str) -> str:
    """The page with every block written anew; KeyError for a block that nothing writes."""
    return _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}{found[3]}", text)


def pages() -> Iterator[Path]:
    yield from sorted(DOCS.rglob("*.md"))


def main() -> None:
    for page in pages():
        text = page.read_text()
        if (new := fresh(text)) != text:
            page.write_text(new)
            print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
