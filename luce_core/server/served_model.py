"""What the routes know of the one loaded model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from luce_core.errors import RequestError
from luce_core.text.formats import ModelText

_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Fixed after load.

    `names[0]` is the real name, which replies carry; the others are aliases. `vocab_size` is that
    of the logits. `meta` holds plain JSON facts of the file (n_params, n_ctx_train, size,
    architecture, ...), `engine_facts` those that the engine states of itself, `providers` one line
    per bound op, `modes` how steps run (op by op or replayed, and why), `pool` the sum behind the
    KV pool, `pacing` how many prompt rows ride beside decoders, and why.
    """

    names: tuple[str, ...]
    text: ModelText
    max_context: int
    vocab_size: int
    created: int
    engine: str
    device: str = "cpu"
    meta: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    engine_facts: Mapping[str, object] = field(default_factory=dict)
    providers: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    pool: str = ""
    pacing: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0]

    def check_name(self, wanted: str | None, *, strict: bool) -> None:
        """RequestError (404) for an unknown name if names are strict; else any name is served."""
        if strict and wanted is not None and wanted not in self.names:
            raise RequestError(
                f"model {wanted[:_SHOWN_CHARS]!r} is not served here; served: "
                f"{', '.join(self.names)}",
                param="model",
                code="model_not_found",
                status=404,
            )
