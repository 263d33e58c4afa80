"""The tensors of a draft file by our names, whichever names the file has."""

from __future__ import annotations

from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.tensor_claims import TensorClaims
from luce_qwen_dflash2.draft.naming import naming_of


class DraftTensors:
    """Claims tensors by name and shape; ModelFileError names, as the file does, what does not fit
    and what is left over."""

    def __init__(self, gguf: GgufFile) -> None:
        self._naming = naming_of(gguf.architecture)
        self._there = frozenset(gguf.tensors)
        self._claims = TensorClaims(gguf)

    @property
    def claimed_bytes(self) -> int:
        return self._claims.claimed_bytes

    def take(self, name: str, *shape: int) -> QuantTensor:
        """A tensor that must be there. A size of -1 accepts any."""
        return self._claims.take(self._naming.tensor(name, self._there), *shape)

    def finish(self) -> None:
        self._claims.finish()
