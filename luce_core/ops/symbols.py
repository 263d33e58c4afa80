"""Stand-ins for tensors and for the batch, which model code sees while it is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from luce_core.errors import LuceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from luce_core.ops.record import Recorder
    from luce_core.ops.spec import Rows


class RecordingRefused(LuceError):
    """Model code did something that cannot be replayed; the step then runs eagerly."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"cannot record {op}: {reason}")
        self.op = op
        self.reason = reason


class Symbol:
    """Base of all stand-ins. Whatever is not a bound op or a view of a row refuses them."""

    recorder: Recorder

    def _refuse(self, what: str) -> NoReturn:
        raise RecordingRefused(what, "model code may only call bound ops and view their outputs")

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        raise RecordingRefused(f"torch.{name}", "arithmetic between ops must be an op itself")

    def __bool__(self) -> bool:
        self._refuse("a branch on a step's data")

    def __iter__(self) -> NoReturn:
        self._refuse("a loop over a step's data")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f".{name}")

    def __add__(self, other: object) -> NoReturn:
        self._refuse("arithmetic")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = __add__


class Field(Symbol):
    """One tensor of the batch, by name; `shape` is the largest it can have."""

    def __init__(self, recorder: Recorder, name: str, shape: tuple[int, ...]) -> None:
        self.recorder = recorder
        self.name = name
        self.shape = shape


class BatchHeader(Symbol):
    """The batch of a recording: its tensors are Fields, its host counts are not there yet."""

    def __init__(self, recorder: Recorder, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.recorder = recorder
        for name, shape in shapes.items():
            setattr(self, name, Field(recorder, name, shape))


class Root:
    """The memory of one output; its arena place is free again when no Buffer holds it."""

    __slots__ = ("__weakref__", "place")

    def __init__(self, place: int) -> None:
        self.place = place


class Buffer(Symbol):
    """An op's output, or a view of it that keeps the row axis: `view`, `unflatten`, `flatten`,
    `split`, and slices of the later dimensions. `shape[0]` is the largest row count.
    """

    def __init__(self, recorder: Recorder, root: Root, meta: Tensor, rows: Rows) -> None:
        self.recorder = recorder
        self.root = root
        self.meta = meta
        self.rows = rows

    @property
    def shape(self) -> torch.Size:
        return self.meta.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.meta.dtype

    @property
    def ndim(self) -> int:
        return self.meta.ndim

    def _viewed(self, what: str, meta: Tensor) -> Buffer:
        same_rows = meta.ndim > 0 and meta.shape[0] == self.shape[0]
        if not same_rows or meta.stride(0) != self.meta.stride(0):
            raise RecordingRefused(what, "a view must keep the row axis as it is")
        return Buffer(self.recorder, self.root, meta, self.rows)

    def view(self, *shape: int) -> Buffer:
        return self._reshaped("view", shape)

    def _reshaped(self, what: str, shape: tuple[int, ...]) -> Buffer:
        try:
            meta = self.meta.view(*shape)
        except RuntimeError as error:
            raise RecordingRefused(what, str(error)) from error
        return self._viewed(what, meta)

    def unflatten(self, dim: int, sizes: tuple[int, ...]) -> Buffer:
        place = dim % self.ndim
        shape = (*self.shape[:place], *sizes, *self.shape[place + 1 :])
        return self._reshaped("unflatten", shape)

    def flatten(self, start_dim: int) -> Buffer:
        return self._reshaped("flatten", (*self.shape[:start_dim], -1))

    def split(self, sizes: int | list[int], dim: int) -> tuple[Buffer, ...]:
        return tuple(self._viewed("split", part) for part in torch.split(self.meta, sizes, dim))

    def __getitem__(self, index: Any) -> Buffer:
        items = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(item, slice | int) or item is Ellipsis for item in items):
            self._refuse("indexing with a tensor")
        return self._viewed("slicing", self.meta[index])
