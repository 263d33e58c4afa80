"""docs/quantize.md names the options, types and layouts that the code has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from luce_core.quantize.options import parse_options
from luce_core.quantize.plan import WRITABLE
from luce_core.weights.quant.rocmfp_encode import ROCMFP_TYPES
from luce_core.weights.quant_types import QUANT_TYPES

PAGE = "docs/quantize.md"


def test_every_option_has_a_row(pages: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--help"])
    flags = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    rows = pages[PAGE].table("option", "meaning")
    named = {span.split()[0] for row in rows for span in row[0].spans}
    assert len(flags) >= 9
    assert named == flags


def test_every_type_is_named(pages: dict[str, Any]) -> None:
    assert set(WRITABLE) <= set(re.findall(r"\w+", pages[PAGE].text))


def test_the_table_of_rocmfp_types_is_that_of_the_code(pages: dict[str, Any]) -> None:
    rows = pages[PAGE].table("type", "ggml id")
    assert {row[0] for row in rows} == set(ROCMFP_TYPES)
    for name, number, _, size, bits, levels, group in rows:
        kind, form = QUANT_TYPES[name], ROCMFP_TYPES[name]
        assert (int(number), int(size), int(group)) == (
            kind.ggml_id,
            kind.block_bytes,
            form.group,
        )
        assert float(bits) == 8 * kind.block_bytes / kind.block_values
        if levels != "the same":
            assert int(re.findall(r"\d+", levels)[-1]) == form.top
