"""Every error that a user, a file, a plugin or a device can cause.

Start-up errors end the process with one line. Request errors become HTTP answers. Faults end
requests and leave the server running. `assert` is kept for what our own code guarantees.
"""

from __future__ import annotations

from collections.abc import Iterable


class LuceError(Exception):
    """Base of all errors that luce raises on purpose; the message is fit for a user."""


class ConfigError(LuceError):
    """Start-up: a setting, a checkpoint key, an unknown op or engine."""


class PluginError(LuceError):
    """Start-up: a plugin does not load, a hook does not match, two flags collide."""


class ModelFileError(LuceError):
    """Start-up: a model file is wrong. Names the file, the field, the value, what is accepted."""

    def __init__(self, path: object, field: str, problem: str) -> None:
        super().__init__(f"{path}: {field}: {problem}")
        self.path = str(path)
        self.field = field


class RequestError(LuceError):
    """A request that is refused before it is queued (400, 401, 404, 413, 422).

    Raised on the asyncio thread only. `param` is the JSON field at fault, `code` a stable word
    that clients match on.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class Overloaded(LuceError):
    """The queue is full (429) or the server is loading, stalled or draining (503)."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "queue_full",
        status: int = 429,
        retry_after_s: int = 1,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s


class SlotFault(LuceError):
    """Raised by `lower_plan`: these slots cannot take part; the others' step still happens."""

    def __init__(self, slot_ids: Iterable[int], reason: str) -> None:
        self.slot_ids = tuple(slot_ids)
        self.reason = reason
        super().__init__(f"slots {list(self.slot_ids)}: {reason}")


class StepFault(LuceError):
    """A step failed, or its result is invalid: exactly the plan's requests end with `error`."""


class EngineDead(LuceError):
    """The device is lost, or too many steps failed in a row: all requests end, the server exits."""
