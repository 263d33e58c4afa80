"""What a file is when it is no GGUF file: said in one line, with what to do."""

from __future__ import annotations

from collections.abc import Mapping
from mmap import mmap
from pathlib import Path
from types import MappingProxyType

from luce_core.errors import ModelFileError

_CONVERT = "convert the model to GGUF (llama.cpp's convert_hf_to_gguf.py)"
_DOWNLOAD = "download the model file itself"
_OLD_GGML = ("a model file from before GGUF", "get or convert a GGUF file")
_PICKLE = ("a PyTorch pickle", _CONVERT)

# What the first bytes say, and what to do then.
_SIGNATURES: Mapping[bytes, tuple[str, str]] = MappingProxyType(
    {
        b"version https://git-lfs": (
            "a git-lfs pointer, not the model",
            "fetch it with `git lfs pull`",
        ),
        b"PK\x03\x04": ("a zip archive, as PyTorch checkpoints are", _CONVERT),
        b"\x80\x02": _PICKLE,
        b"\x80\x03": _PICKLE,
        b"\x80\x04": _PICKLE,
        b"\x1f\x8b": ("a gzip archive", "unpack it first"),
        b"\x28\xb5\x2f\xfd": ("a zstandard archive", "unpack it first"),
        b"\xfd7zXZ": ("an xz archive", "unpack it first"),
        b"\x89HDF": ("an HDF5 file", _CONVERT),
        b"lmgg": _OLD_GGML,
        b"fmgg": _OLD_GGML,
        b"tjgg": _OLD_GGML,
        b"FUGG": ("a big-endian GGUF file", "only little-endian files are accepted"),
    }
)
_HEAD_BYTES = 512


def refuse_other_kinds(path: Path, data: bytes | mmap) -> None:
    """Raise ModelFileError, naming the kind, unless the file begins as GGUF files do."""
    head = data[:_HEAD_BYTES]
    if head.startswith(b"GGUF"):
        return
    kind, hint = _name(path, head, len(data))
    raise ModelFileError(path, "file type", f"this is {kind}, not a GGUF model: {hint}")


def _name(path: Path, head: bytes, file_bytes: int) -> tuple[str, str]:
    for signature, answer in _SIGNATURES.items():
        if head.startswith(signature):
            return answer
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, perhaps an error page saved by a download", _DOWNLOAD
    if 2 <= int.from_bytes(head[:8], "little") <= file_bytes - 8 and head[8:9] == b"{":
        return "a safetensors file", _CONVERT
    if _is_onnx(path, head):
        return "an ONNX model", "luce runs GGUF models; get the GGUF version"
    if text.startswith((b"{", b"[")):
        return "a JSON file", "give the .gguf file"
    if not head.strip(b"\0"):
        return "a file of zeros, as an unfinished download leaves", _DOWNLOAD
    shown = head[:4].hex(" ")
    return f"an unknown kind of file (it begins with bytes {shown})", "GGUF files begin with GGUF"


def _is_onnx(path: Path, head: bytes) -> bool:
    """ONNX is a protobuf message without a signature: field 1 is a small version number."""
    begins = len(head) > 2 and head[0] == 0x08 and 0 < head[1] < 0x40
    return begins and (path.suffix == ".onnx" or b"onnx" in head or head[2] == 0x12)
