"""Ops that choose a draft's tokens from logits."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

import torch

from luce_kernels_cpu.native_op import Arg, Given, NativeOp, cache_address
from luce_kernels_cpu.native_weight import pack_weight
from luce_kernels_cpu.structs import Op, Rows
from luce_kernels_cpu.views import aligned
from luce_kernels_cpu.weight_types import WEIGHT_TYPES

MOST_CANDIDATES = 64  # LK_MOST_CANDIDATES
MOST_RANK = 65536  # LK_MOST_RANK


class Noise(c.Structure):
    _fields_ = [
        ("temperatures", c.c_void_p),
        ("keys", c.c_void_p),
        ("slots", c.c_int32),
        ("keys_per_slot", c.c_int32),
    ]


class Candidate(c.Structure):
    _fields_ = [("value", c.c_float), ("token", c.c_int32)]


class DraftDrawArgs(c.Structure):
    _fields_ = [("logits", Rows), ("noise", Noise), ("out", c.c_void_p)]


class CandidateSelectArgs(c.Structure):
    _fields_ = [
        ("logits", Rows),
        ("g", Rows),
        ("noise", Noise),
        ("predecessors", c.c_void_p),
        ("successors", c.c_void_p),
        ("top_k", c.c_int32),
        ("offered", c.c_void_p),
        ("counts", c.c_void_p),
        ("out", c.c_void_p),
    ]


def _noise(given: Given) -> Noise:
    temperatures, keys = given.tensors["temperatures"], given.tensors["noise_keys"]
    slots = min(temperatures.shape[0], keys.shape[0])
    return Noise(
        cache_address(temperatures), cache_address(keys, torch.int64), slots, keys.shape[1]
    )


def _draft_draw(given: Given) -> c.Structure:
    return DraftDrawArgs(given.rows["logits"], _noise(given), given.rows["out"].data)


def _counts_bytes(rows: int) -> int:
    return aligned(4 * rows)


def _shared_bytes(facts: Mapping[str, Any], rows: int) -> int:
    return _counts_bytes(rows) + rows * int(facts["top_k"]) * c.sizeof(Candidate)


def _candidate_select(given: Given) -> c.Structure:
    rows, tensors = given.rows, given.tensors
    return CandidateSelectArgs(
        rows["logits"],
        rows["g"],
        _noise(given),
        tensors["predecessors"].handle,
        tensors["successors"].handle,
        given.facts["top_k"],
        given.shared + _counts_bytes(given.logits),
        given.shared,
        rows["out"].data,
    )


def accepts_codebooks(facts: Mapping[str, Any]) -> bool:
    return (
        facts["top_k"] <= MOST_CANDIDATES
        and facts["rank"] <= MOST_RANK
        and facts["predecessor_type"] in WEIGHT_TYPES
        and facts["successor_type"] in WEIGHT_TYPES
    )


CANDIDATE_OPS = (
    NativeOp(
        name="draft_draw",
        code=Op.DRAFT_DRAW,
        args={
            "logits": Arg.LOGITS,
            "batch": Arg.BATCH,
            "temperatures": Arg.READ,
            "noise_keys": Arg.READ,
            "out": Arg.LOGITS,
        },
        fill=_draft_draw,
        offer={"split_invariant": False},
    ),
    NativeOp(
        name="candidate_select",
        code=Op.CANDIDATE_SELECT,
        args={
            "logits": Arg.LOGITS,
            "g": Arg.LOGITS,
            "batch": Arg.BATCH,
            "temperatures": Arg.READ,
            "noise_keys": Arg.READ,
            "predecessors": Arg.WEIGHT,
            "successors": Arg.WEIGHT,
            "out": Arg.LOGITS,
        },
        fill=_candidate_select,
        shared_bytes=_shared_bytes,
        offer={
            "prepare": pack_weight,
            "accepts": accepts_codebooks,
            "split_invariant": False,
        },
    ),
)
