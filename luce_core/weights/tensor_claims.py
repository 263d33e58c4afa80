"""The tensors of a file: each is claimed once with its shape, and none is left over in silence."""

from __future__ import annotations

import logging

from luce_core.errors import ModelFileError
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.scale_bytes import refuse_invalid_scales

log = logging.getLogger(__name__)

# Parts of other models that some exporters put into the same file.
_FOREIGN = ("v.", "mm.")


class TensorClaims:
    """Hands out a file's tensors by name and shape; ModelFileError names what does not fit, and a
    scale in a tensor's blocks that is no number."""

    def __init__(self, gguf: GgufFile) -> None:
        self.path = gguf.path
        self._left = dict(gguf.tensors)
        self.claimed_bytes = 0

    def take(self, name: str, *shape: int) -> QuantTensor:
        """A tensor that must be there."""
        tensor = self.take_optional(name, *shape)
        if tensor is None:
            raise ModelFileError(self.path, name, "this tensor is missing")
        return tensor

    def take_any(self, name: str, *shapes: tuple[int, ...]) -> QuantTensor:
        """A tensor that must be there, in one of the shapes that files hold it in."""
        found = self._left.get(name)
        shape = next((s for s in shapes if found is not None and len(s) == len(found.shape)), None)
        return self.take(name, *(shapes[0] if shape is None else shape))

    def take_optional(self, name: str, *shape: int) -> QuantTensor | None:
        """A tensor that may be absent. A size of -1 accepts any."""
        tensor = self._left.pop(name, None)
        if tensor is None:
            return None
        fits = len(tensor.shape) == len(shape) and all(
            want in (-1, have) for want, have in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            expected = ", ".join("any" if size == -1 else str(size) for size in shape)
            raise ModelFileError(
                self.path, name, f"has shape {list(tensor.shape)}, expected [{expected}]"
            )
        refuse_invalid_scales(self.path, tensor)
        self.claimed_bytes += tensor.nbytes
        return tensor

    def skip(self, prefix: str, what: str) -> None:
        """Pass over the tensors whose names begin with `prefix`; one log line if there are any."""
        skipped = [name for name in self._left if name.startswith(prefix)]
        for name in skipped:
            self.claimed_bytes += self._left.pop(name).nbytes
        if skipped:
            log.info("%s: %d tensors of %s are skipped", self.path, len(skipped), what)

    def finish(self) -> None:
        """Refuse tensors that nobody claimed; parts of other models are skipped with one line."""
        foreign = [name for name in self._left if name.startswith(_FOREIGN)]
        if foreign:
            log.info("%s: %d tensors of another model are skipped", self.path, len(foreign))
        unknown = [name for name in self._left if name not in foreign]
        if unknown:
            shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            raise ModelFileError(
                self.path, shown, "unknown to this architecture; the model would be wrong without"
            )
