"""What every decode step runs compiles for each GPU on a machine without one, and fits it."""

from __future__ import annotations

from typing import Any

import pytest
from luce_kernels_rocm.aot.report import amdgcn_figures, ptx_figures
from luce_kernels_rocm.arch import ARCHES

from luce_core.errors import LuceError

# Kernels whose products fill matrix instructions.
MULTIPLYING = frozenset(
    {
        "attend",
        "attend_part",
        "attend_prefill",
        "chunk_tables",
        "delta_chunks",
        "draft_attention",
        "grouped",
        "scores",
        "tiled",
    }
)


def named(report: dict[str, Any]) -> str:
    return f"{report['arch']} {report['case']}: {report}"


@pytest.mark.parametrize("arch", ARCHES)
def test_decode_kernels_fit_registers_and_memory_and_products_use_matrix_instructions(
    arch: str, compile_ahead: Any
) -> None:
    """One test for an architecture: it is compiled once, whichever processes share the tests."""
    reports = compile_ahead(arch, "--critical")
    assert any(report["kernel"] == "tiled" for report in reports)
    for report in reports:
        check_registers(report)
        assert report["lds_bytes"] <= ARCHES[arch].lds_bytes, named(report)
        if report["kernel"] == "tiled":
            check_matrix(report)


def check_registers(report: dict[str, Any]) -> None:
    assert report["spills"] == 0, named(report)
    assert report["scratch_bytes"] == 0, named(report)


def check_matrix(report: dict[str, Any]) -> None:
    prefix = {"wmma": "v_wmma_f32_16x16x16_", "mma": ("mma.sync.", "wgmma.mma_async.")}
    wanted = prefix[ARCHES[report["arch"]].matrix]
    assert any(name.startswith(wanted) for name in report["matrix"]), named(report)


@pytest.fixture(scope="module", params=ARCHES)
def everything(request: pytest.FixtureRequest, compile_ahead: Any) -> list[dict[str, Any]]:
    reports = compile_ahead(request.param)
    assert len(reports) > 400
    return reports


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_kernel_keeps_registers_in_memory(everything: list[dict[str, Any]]) -> None:
    """Of prompts and decode steps, at every shape and in both dtypes."""
    for report in everything:
        check_registers(report)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_kernel_fits_and_multiplies_by_matrix_instructions(
    everything: list[dict[str, Any]],
) -> None:
    for report in everything:
        assert report["lds_bytes"] <= ARCHES[report["arch"]].lds_bytes, named(report)
        if report["kernel"] in MULTIPLYING:
            check_matrix(report)


def test_figures_are_read_from_amd_assembly() -> None:
    text = (
        "\tv_wmma_f32_16x16x16_f16 v[0:7], v[8:15]\n\tv_wmma_f32_16x16x16_f16 v[0:7]\n"
        "\tv_mfma_f32_16x16x16_bf16 a[0:3]\n\tv_add_f32 v1, v2, v3\n"
        "    .private_segment_fixed_size: 8\n    .sgpr_spill_count: 1\n"
        "    .vgpr_count:     148\n    .vgpr_spill_count: 2\n"
    )
    assert amdgcn_figures(text) == {
        "registers": 148,
        "spills": 2,
        "scalar_spills": 1,
        "scratch_bytes": 8,
        "matrix": {"v_wmma_f32_16x16x16_f16": 2, "v_mfma_f32_16x16x16_bf16": 1},
    }


def test_figures_are_read_from_ptx_and_its_resources() -> None:
    mma = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    text = f"\t{mma} {{ %r1 }};\n\twgmma.wait_group.sync.aligned 0;\n"
    resources = " Function k:\n  REG:40 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:380 TEXTURE:0\n"
    assert ptx_figures(text, resources) == {
        "registers": 40,
        "spills": 16,
        "scalar_spills": 0,
        "scratch_bytes": 16,
        "matrix": {mma: 1, "wgmma.wait_group.sync.aligned": 1},
    }


def test_assembly_without_figures_is_refused() -> None:
    with pytest.raises(LuceError, match="vgpr_count"):
        amdgcn_figures("s_endpgm\n")
    with pytest.raises(LuceError, match="cuobjdump"):
        ptx_figures("", "nothing")
