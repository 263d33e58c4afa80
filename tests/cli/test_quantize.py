"""`luce quantize` writes what it was asked for, keeps the rest, and leaves nothing half done."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from luce_core.quantize import convert
from luce_core.quantize.plan import WRITABLE
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import TensorSource, write_file, write_gguf
from luce_core.weights.quant_types import QUANT_TYPES, quantize
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

ROCMFP = [name for name in WRITABLE if name.startswith("ROCMFP")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not quantised; rows of 256 and 512 values."""
    shape = SyntheticModel(qtype="F16", width=256, ff=512, layers=1, tied=False)
    return write_synthetic(tmp_path_factory.mktemp("model") / "f16.gguf", shape)


def types_of(path: Path) -> dict[str, str]:
    with GgufFile.open(path) as file:
        return {name: tensor.qtype.name for name, tensor in file.tensors.items()}


@pytest.mark.parametrize("name", WRITABLE)
def test_every_type_is_written_as_the_quantiser_writes_it(luce, model, tmp_path, name):
    target = tmp_path / "out.gguf"
    code, out, err = luce("quantize", model, target, "--type", name.lower())
    assert (code, err) == (0, "")
    assert name in out
    with GgufFile.open(model) as before, GgufFile.open(target) as after:
        assert list(before.tensors) == list(after.tensors)
        for key, was in before.tensors.items():
            now = after.tensors[key]
            assert now.shape == was.shape
            if len(was.shape) == 1:
                assert now.qtype == was.qtype
                assert torch.equal(now.blocks, was.blocks)
            elif key in ("output.weight", "token_embd.weight"):
                bits = 8 * QUANT_TYPES[name].block_bytes / QUANT_TYPES[name].block_values
                assert now.qtype.name == (name if bits >= 8 else "Q8_0")
            else:
                assert now.qtype.name == name
                assert torch.equal(now.blocks, quantize(was.dequantize(), name))


def test_pieces_and_threads_change_no_byte(luce, model, tmp_path, monkeypatch):
    whole, pieces = tmp_path / "whole.gguf", tmp_path / "pieces.gguf"
    luce("quantize", model, whole, "--type", "ROCMFP4", "--threads", "1")
    monkeypatch.setattr(convert, "_PIECE_VALUES", 700)
    luce("quantize", model, pieces, "--type", "ROCMFP4", "--threads", "5")
    assert whole.read_bytes() == pieces.read_bytes()


def test_types_by_pattern_by_flag_and_kept(luce, model, tmp_path):
    target = tmp_path / "out.gguf"
    words = ["--type", "ROCMFP2", "--tensor-type", r"ffn_(up|gate)=ROCMFP3", "--tensor-type"]
    words += ["ffn=Q8_0", "--keep", "attn_k", "--output-type", "q4_0", "--embedding-type", "F16"]
    assert luce("quantize", model, target, *words).code == 0
    found = types_of(target)
    assert found["blk.0.ffn_up.weight"] == found["blk.0.ffn_gate.weight"] == "ROCMFP3"
    assert found["blk.0.ffn_down.weight"] == "Q8_0"
    assert found["blk.0.attn_k.weight"] == "F16"
    assert found["blk.0.attn_q.weight"] == "ROCMFP2"
    assert found["blk.0.ffn_norm.weight"] == "F32"
    assert found["output.weight"] == "Q4_0"
    assert found["token_embd.weight"] == "F16"


def test_routers_norms_of_heads_and_ids_stay_as_they_are(luce, tmp_path):
    stays = ["ffn_gate_inp.weight", "attn_q_norm.weight", "ssm_conv1d.weight", "ssm_dt.bias"]
    stays += ["hc_attn_fn.weight", "ffn_gate_tid2eid.weight", "ffn_gate_inp_shexp.weight"]
    moves = ["ffn_gate_exps.weight", "attn_gate.weight", "ssm_alpha.weight", "attn_q_a.weight"]
    tensors: dict[str, torch.Tensor] = {
        f"blk.0.{name}": torch.ones(2, 64) for name in (*stays, *moves)
    }
    tensors["blk.0.ffn_gate_exps.weight"] = torch.ones(3, 2, 64)
    tensors["blk.0.ids.weight"] = torch.ones(2, 64, dtype=torch.int32)
    source = write_gguf(tmp_path / "in.gguf", "x", {}, tensors)
    assert luce("quantize", source, tmp_path / "out.gguf", "--type", "ROCMFP3").code == 0
    found = types_of(tmp_path / "out.gguf")
    assert {n for n, kind in found.items() if kind == "ROCMFP3"} == {f"blk.0.{n}" for n in moves}
    assert found["blk.0.ids.weight"] == "I32"


def test_rows_that_are_not_whole_blocks_fall_back_and_it_is_said(luce, tmp_path):
    tensors = {"a.weight": torch.ones(2, 96), "b.weight": torch.ones(2, 50)}
    source = write_gguf(tmp_path / "in.gguf", "x", {}, tensors)
    code, out, _ = luce("quantize", source, tmp_path / "out.gguf", "--type", "TQ2_0")
    assert code == 0
    assert types_of(tmp_path / "out.gguf") == {"a.weight": "Q8_0", "b.weight": "F16"}
    assert "1 tensors are Q8_0" in out
    assert "a.weight with rows of 96 values" in out
    words = ("--type", "Q8_0", "--tensor-type", "b=Q4_0")
    code, _, err = luce("quantize", source, tmp_path / "other.gguf", *words)
    assert code == 1
    assert "--tensor-type b=Q4_0: rows of 'b.weight' hold 50 values" in err


def test_metadata_is_copied_to_the_bit_and_says_the_new_type(luce, tmp_path):
    keys = {
        "general.architecture": "x",
        "general.file_type": 1,
        "general.alignment": 64,
        "split.count": 0,
        "x.small": np.uint8(3),
        "x.negative": np.int16(-3),
        "x.large": np.uint64(5),
        "x.precise": np.float64(0.1),
        "x.words": ["a", "", "ä"],
        "x.flags": [True, False],
        "x.halves": np.array([1, 2], np.int8),
    }
    source = write_gguf(tmp_path / "in.gguf", "x", keys, {"a.weight": torch.ones(2, 64)})
    for name, number in (("Q8_0", 7), ("Q4_0", 2), ("MXFP4", 38), ("F16", 1), ("ROCMFP4", None)):
        target = tmp_path / f"{name}.gguf"
        assert luce("quantize", source, target, "--type", name).code == 0
        before, after = gguf.GGUFReader(source), None
        if number is None:  # the package knows no such tensor type: it reads keys of others only
            with GgufFile.open(target) as file:
                assert not file.metadata.has("general.file_type")
                assert file.metadata.int("general.quantization_version") == 2
            continue
        after = gguf.GGUFReader(target)
        for key in keys:
            if key.startswith("x."):
                one, other = before.fields[key], after.fields[key]
                assert one.types == other.types
                assert str(one.contents()) == str(other.contents())
        assert after.fields["general.file_type"].contents() == number
        assert after.fields["general.quantization_version"].contents() == 2
        assert "split.count" not in after.fields
        assert "general.alignment" not in after.fields


def test_a_split_model_becomes_one_file(luce, model, tmp_path):
    with GgufFile.open(model) as file:
        tensors = list(file.tensors.values())
        for number in range(2):
            keys = {} if number else dict(file.metadata.values)
            keys |= {"split.no": number, "split.count": 2, "split.tensors.count": len(tensors)}
            part = [
                TensorSource(t.name, t.qtype, t.shape, lambda t=t: [t.blocks.numpy().data])
                for t in tensors[number::2]
            ]
            write_file(tmp_path / f"m-0000{number + 1}-of-00002.gguf", keys, part)
    target = tmp_path / "one.gguf"
    shard = tmp_path / "m-00002-of-00002.gguf"
    assert luce("quantize", shard, target, "--type", "ROCMFP6").code == 0
    assert set(types_of(target)) == set(types_of(model))


@pytest.mark.parametrize("name", ["Q8_0", "ROCMFP8"])
def test_what_is_quantised_already_needs_a_word(luce, model, tmp_path, name):
    source = tmp_path / "in.gguf"
    luce("quantize", model, source, "--type", name)
    code, _, err = luce("quantize", source, tmp_path / "out.gguf", "--type", "ROCMFP4")
    assert code == 1
    assert f".weight': is {name} already" in err
    assert "--allow-requantize" in err
    assert not (tmp_path / "out.gguf").exists()
    # What keeps its type is only copied.
    assert luce("quantize", source, tmp_path / "same.gguf", "--type", name).code == 0
    words = ("--type", "ROCMFP4", "--allow-requantize")
    assert luce("quantize", source, tmp_path / "out.gguf", *words).code == 0
    assert types_of(tmp_path / "out.gguf")["blk.0.attn_q.weight"] == "ROCMFP4"


def test_a_file_that_is_there_is_replaced_only_by_force(luce, model, tmp_path):
    target = tmp_path / "out.gguf"
    target.write_text("mine")
    code, _, err = luce("quantize", model, target, "--type", "Q8_0")
    assert (code, target.read_text()) == (1, "mine")
    assert err == f"luce quantize: {target}: is there already; --force replaces it\n"
    assert luce("quantize", model, target, "--type", "Q8_0", "--force").code == 0
    assert types_of(target)["blk.0.attn_q.weight"] == "Q8_0"


def test_the_model_itself_is_never_replaced(luce, model, tmp_path):
    link = tmp_path / "link.gguf"
    os.link(model, link)
    before = model.read_bytes()
    code, _, err = luce("quantize", model, link, "--type", "Q8_0", "--force")
    assert code == 1
    assert "is the model that is read" in err
    assert model.read_bytes() == before


def test_a_dry_run_writes_nothing(luce, model, tmp_path):
    code, out, _ = luce("quantize", model, tmp_path / "out.gguf", "--type", "Q8_0", "--dry-run")
    assert code == 0
    assert "nothing is written" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "'b.weight': holds a value that is infinite or no number"),
        (1e6, "'b.weight': cannot quantize 1e+06 to ROCMFP4: it ends at 2240"),
    ],
)
def test_values_that_cannot_be_written_leave_no_file(luce, tmp_path, value, said):
    bad = torch.ones(2, 64)
    bad[1, 3] = value
    tensors = {"a.weight": torch.ones(2, 64), "b.weight": bad}
    source = write_gguf(tmp_path / "in.gguf", "x", {}, tensors)
    code, _, err = luce("quantize", source, tmp_path / "out.gguf", "--type", "ROCMFP4")
    assert code == 1
    assert said in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_scales_that_are_no_number_leave_no_file(luce, tmp_path):
    source = tmp_path / "in.gguf"
    write_gguf(source, "x", {}, {"a.weight": torch.ones(2, 64)})
    damaged = tmp_path / "damaged.gguf"
    luce("quantize", source, damaged, "--type", "ROCMFP8")
    raw = bytearray(damaged.read_bytes())
    with GgufFile.open(damaged) as file:
        mapped = file.tensors["a.weight"].mapped
    assert mapped is not None
    raw[mapped.start + 32] = 0xFF
    damaged.write_bytes(raw)
    words = ("--type", "F16", "--allow-requantize")
    code, _, err = luce("quantize", damaged, tmp_path / "out.gguf", *words)
    assert code == 1
    assert "byte 32 of block 0 (row 0) is 0xff, which is no ROCMFP8 scale" in err
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--type", "Q4_K"), "--type: cannot write 'Q4_K'; known types are F32, "),
        (("--type", "nonsense"), "cannot write 'NONSENSE'"),
        (("--type", "Q8_0", "--output-type", "I32"), "--output-type: cannot write 'I32'"),
        (("--type", "Q8_0", "--tensor-type", "ffn"), "must be PATTERN=TYPE, got 'ffn'"),
        (("--type", "Q8_0", "--tensor-type", "ffn=Q9"), "--tensor-type: cannot write 'Q9'"),
        (("--type", "Q8_0", "--tensor-type", "((=Q8_0"), "'((' is no regular expression"),
        (("--type", "Q8_0", "--keep", "fnn_up"), "no tensor to change fits 'fnn_up'"),
        (("--type", "Q8_0", "--tensor-type", "norm=Q4_0"), "no tensor to change fits 'norm'"),
        (("--type", "Q8_0", "--threads", "0"), "--threads: must be at least 1, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(luce, model, tmp_path, words, said):
    code, _, err = luce("quantize", model, tmp_path / "out.gguf", *words)
    assert code == 1
    assert said in err
    assert not list(tmp_path.iterdir())


def test_targets_that_cannot_be_written_are_refused(luce, model, tmp_path):
    code, _, err = luce("quantize", model, tmp_path, "--type", "Q8_0")
    assert code == 1
    assert "is a folder" in err
    code, _, err = luce("quantize", model, tmp_path / "no" / "out.gguf", "--type", "Q8_0")
    assert code == 1
    assert "there is no folder" in err
