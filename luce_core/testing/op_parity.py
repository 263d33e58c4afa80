"""Every registered kernel over its op's cases, against the float32 reference.

A plugin's whole kernel test is

    test_parity = make_parity_test(registry, Device.parse("cpu"))

Outputs are NaN before the call, and caches are NaN outside what the op may read, so a row that is
not written and a block that must not be read both show. Equal bits are demanded for parts of a
case where the kernel declares an invariance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from luce_core.device import Device
from luce_core.ops.bound import BoundOp
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part
from luce_core.ops.devices import device_arch
from luce_core.ops.kernel import REFERENCE, Kernel, float32_weight
from luce_core.ops.registry import OpRegistry
from luce_core.ops.spec import ArgKind, OpSpec, Tolerance

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class ParityCase(NamedTuple):
    """One kernel on one case at one activation dtype."""

    spec: OpSpec
    kernel: Kernel
    case: OpCase
    dtype: torch.dtype

    @property
    def id(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.spec.name}-{self.kernel.provider}-{dtype}-{self.case.name}"


def parity_cases(
    registry: OpRegistry, device: Device, *, provider: str | None = None
) -> Iterator[ParityCase]:
    """What is registered and can run on the device; `provider` limits it to one."""
    arch = device_arch(device)
    for spec in registry.specs.values():
        for kernel in registry.kernels(spec.name):
            if provider is not None and kernel.provider != provider:
                continue
            for dtype in DTYPES:
                if not kernel.fits(device, arch, dtype):
                    continue
                for case in spec.cases():
                    if kernel.accepts({**spec.optional_facts, **case.facts}):
                        yield ParityCase(spec, kernel, case, dtype)


def check_parity(parity: ParityCase, device: Device) -> None:
    """AssertionError that names op, provider, case and the worst element, if the kernel is wrong.

    The reference runs on the CPU in float32, on the values that the kernel gets, as the kernel
    declares to read them; its result is rounded to the output's dtype.
    """
    spec, kernel, case, dtype = parity
    facts = {**spec.optional_facts, **case.facts}
    inputs = case.make(CaseMaker(device.torch_name, dtype))
    bound = _bind(spec, kernel, facts, inputs, torch.device(device.torch_name), dtype)
    got = _run(bound, inputs, inputs.args, bound.out_dtype)

    for ours, wanted in zip(got, _expected(spec, kernel, facts, case, dtype), strict=True):
        _compare(parity.id, ours, wanted.to(ours.dtype), spec.tolerance[dtype])
    if kernel.row_invariant:
        _compare_parts(f"{parity.id}: a row alone", bound, inputs, inputs.alone, got)
    if kernel.split_invariant:
        _compare_parts(f"{parity.id}: another chunking", bound, inputs, inputs.split, got)


def parity_call(parity: ParityCase, device: Device) -> Callable[[], object]:
    """A call of the kernel on its case's data, for clocks; outputs are made anew each time."""
    spec, kernel, case, dtype = parity
    facts = {**spec.optional_facts, **case.facts}
    inputs = case.make(CaseMaker(device.torch_name, dtype))
    bound = _bind(spec, kernel, facts, inputs, torch.device(device.torch_name), dtype)
    return lambda: bound(*inputs.args)


def make_parity_test(
    registry: OpRegistry, device: Device, *, provider: str | None = None
) -> Callable[[ParityCase], None]:
    """A pytest function with one test per kernel, dtype and case; assign it to `test_...`."""
    cases = list(parity_cases(registry, device, provider=provider))

    @pytest.mark.parametrize("parity", cases, ids=[case.id for case in cases])
    def test_kernel_matches_the_reference(parity: ParityCase) -> None:
        check_parity(parity, device)

    return test_kernel_matches_the_reference


def _bind(
    spec: OpSpec,
    kernel: Kernel,
    facts: dict[str, object],
    inputs: Inputs,
    device: torch.device,
    dtype: torch.dtype,
) -> BoundOp:
    weights = spec.prepared_weights(inputs.weights, kernel.prepare, float32_weight, device)
    return BoundOp(spec, kernel, facts=facts, weights=weights, device=device, dtype=dtype)


def _run(
    bound: BoundOp, inputs: Inputs, args: tuple[object, ...], out_dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """The poisoned output after the call, if there is one, and what the case observes of written
    caches, if it does."""
    if bound.spec.out is None:
        bound.run_into(args, None)
        assert inputs.observe is not None, f"{bound.spec.name}: a case must observe something"
        return (inputs.observe(args),)
    out = torch.empty(bound.out_shape(args), dtype=out_dtype, device=bound.device)
    out.fill_(float("nan") if out_dtype.is_floating_point else torch.iinfo(out_dtype).min)
    bound.run_into(args, out)
    return (out,) if inputs.observe is None else (out, inputs.observe(args))


def _expected(
    spec: OpSpec, judged: Kernel, facts: dict[str, object], case: OpCase, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    cpu = torch.device("cpu")
    inputs = case.make(CaseMaker(cpu, dtype))
    widened = tuple(
        value.float() if arg.kind is ArgKind.ACTIVATION else value
        for arg, value in zip(spec.step_args, inputs.args, strict=True)
    )
    kernel = Kernel(
        op=spec.name,
        fn=spec.reference,
        provider=REFERENCE,
        prepare=spec.prepare or float32_weight,
    )
    bound = _bind(spec, kernel, facts, inputs, cpu, torch.float32)
    return _run(bound, inputs, judged.as_read(facts, widened), bound.out_dtype)


def _compare(what: str, got: Tensor, expected: Tensor, tolerance: Tolerance) -> None:
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    actual, wanted = got.detach().cpu().double(), expected.double()
    wrong_nan = actual.isnan() != wanted.isnan()
    assert not wrong_nan.any(), (
        f"{what}: {int(wrong_nan.sum())} elements are NaN, or should be and are not; first at "
        f"{wrong_nan.nonzero()[0].tolist()}"
    )
    excess = ((actual - wanted).abs() - tolerance.atol - tolerance.rtol * wanted.abs()).nan_to_num()
    if excess.numel() and excess.max() > 0:
        worst = [int(i) for i in torch.unravel_index(excess.argmax(), excess.shape)]
        raise AssertionError(
            f"{what}: {int((excess > 0).sum())} of {excess.numel()} elements differ; at {worst} "
            f"got {actual[tuple(worst)]:.8g}, expected {wanted[tuple(worst)]:.8g}"
        )


def _compare_parts(
    what: str,
    bound: BoundOp,
    inputs: Inputs,
    parts: tuple[Part, ...],
    whole: tuple[Tensor, ...],
) -> None:
    for part in parts:
        for args in part.before:
            _run(bound, inputs, args, bound.out_dtype)
        got = _run(bound, inputs, part.args, bound.out_dtype)
        if bound.spec.out is not None:
            _compare_bits(what, got[0], whole[0], part.rows)
        if part.seen is not None:
            _compare_bits(f"{what}: caches", got[-1][part.seen], whole[-1], part.seen)


def _compare_bits(what: str, got: Tensor, whole: Tensor, rows: slice) -> None:
    expected = whole[rows]
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    same = (got == expected) | (got.isnan() & expected.isnan())
    assert same.all(), (
        f"{what}: rows {rows.start}..{rows.stop - 1} change by up to "
        f"{(got.double() - expected.double()).abs().nan_to_num(torch.inf).max():.3g}"
    )
