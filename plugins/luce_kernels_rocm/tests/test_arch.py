"""Every GPU has an entry, and one that nobody listed works like its nearest relative."""

from __future__ import annotations

import pytest
import torch
from luce_kernels_rocm.arch import ARCHES, INTERPRETER, arch_named, arch_of, arch_of_target
from triton.backends.compiler import GPUTarget

from luce_core.errors import ConfigError


@pytest.mark.parametrize("name", ARCHES)
def test_a_listed_arch_is_found_by_its_target(name: str) -> None:
    arch = arch_named(name)
    target = GPUTarget(arch.backend, arch.triton_arch, arch.wave)
    assert arch_of_target(target) is arch


@pytest.mark.parametrize(
    ("target", "like"),
    [
        (GPUTarget("hip", "gfx1200:xnack-", 32), "gfx1151"),
        (GPUTarget("hip", "gfx1103", 32), "gfx1100"),
        (GPUTarget("cuda", 89, 32), "sm_80"),
        (GPUTarget("cuda", 100, 32), "sm_90"),
        (GPUTarget("cuda", 75, 32), "sm_80"),
    ],
)
def test_an_unlisted_arch_is_like_the_one_below(target: GPUTarget, like: str) -> None:
    arch = arch_of_target(target)
    assert arch.name not in ARCHES
    assert arch.lds_bytes == ARCHES[like].lds_bytes
    assert arch.units == ARCHES[like].units


def test_compute_accelerators_have_other_waves_and_matrix_instructions() -> None:
    arch = arch_of_target(GPUTarget("hip", "gfx942:sramecc+:xnack-", 64))
    assert (arch.name, arch.wave, arch.matrix) == ("gfx942", 64, "mfma")


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="gfx1201"):
        arch_named("gfx1")
    with pytest.raises(ConfigError, match="metal"):
        arch_of_target(GPUTarget("metal", "m4", 32))


def test_interpreted_tensors_have_no_arch() -> None:
    assert arch_of(torch.device("cpu")) is INTERPRETER
