"""What the guides tell authors to write works as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from luce_core.device import Device
from luce_core.ops.registry import OpRegistry
from luce_core.testing.op_parity import check_parity, parity_cases


def squeezed(text: str) -> str:
    """Without white space, since an excerpt stands further left than its original."""
    return "".join(text.split())


def test_the_excerpts_of_the_engine_are_in_the_example(pages: dict[str, Any], root: Path) -> None:
    folder = root / "examples/minimal_engine"
    sources = squeezed("\n".join(path.read_text() for path in folder.rglob("*.py")))
    blocks = pages["docs/write_an_engine.md"].python()
    assert len(blocks) >= 6
    assert not [block for block in blocks if squeezed(block) not in sources]


def test_the_example_is_as_short_as_the_guide_says(root: Path) -> None:
    folder = root / "examples/minimal_engine/minimal_engine"
    lines = [line for path in folder.glob("*.py") for line in path.read_text().splitlines()]
    assert len([line for line in lines if line.strip()]) <= 110


def test_the_kernels_of_the_guide_pass_parity(pages: dict[str, Any]) -> None:
    """All blocks of the guide, run in order as one module, as a reader would type them."""
    module: dict[str, Any] = {"__name__": "my_kernels"}
    exec("\n".join(pages["docs/write_a_kernel.md"].python()), module)
    registry = module["registry"]
    assert isinstance(registry, OpRegistry)
    cpu = Device.parse("cpu")
    cases = list(parity_cases(registry, cpu, provider="my_kernels"))
    assert {case.spec.name for case in cases} == {"rms_norm", "quant_matmul"}
    assert {case.case.facts["qtype"] for case in cases if case.spec.name == "quant_matmul"} == {
        "Q8_0"
    }
    for case in cases:
        check_parity(case, cpu)


def test_the_arguments_of_register_are_all_explained(pages: dict[str, Any]) -> None:
    rows = pages["docs/write_a_kernel.md"].table("argument", "meaning")
    explained = {span for cell, _ in rows for span in cell.spans}
    code = OpRegistry.register_kernel.__code__
    taken = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    assert explained == set(taken)


def test_every_contract_method_is_in_the_guide(pages: dict[str, Any]) -> None:
    text = pages["docs/write_an_engine.md"].text
    for name in (
        "capabilities",
        "memory_need",
        "allocate",
        "admit",
        "lower_plan",
        "execute",
        "commit_prefill",
        "retire",
        "close",
    ):
        assert re.search(rf"\b{name}\b", text), name
