"""Who may call: API keys, compared in constant time, on every route but /health."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from luce_core.errors import ConfigError, RequestError
from luce_core.settings import Settings


class ApiKeys:
    """The keys of this server; without any, whatever a client sends is accepted."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    @classmethod
    def from_settings(cls, settings: Settings) -> ApiKeys:
        """Keys from --api-key and --api-key-file; ConfigError if the file gives none."""
        keys = list(settings.api_key)
        path = settings.api_key_file
        if path is not None:
            try:
                lines = path.read_text(encoding="utf-8-sig").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"--api-key-file {path}: {error}") from error
            found = [line.strip() for line in lines if line.strip()]
            if not found:
                raise ConfigError(f"--api-key-file {path}: no key in it, expected one a line")
            keys += found
        return cls(tuple(keys))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Mapping[str, str]) -> None:
        """RequestError (401) unless the headers carry one of the keys."""
        if not self._digests:
            return
        sent = headers.get("X-Api-Key", "")
        scheme, _, value = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            sent = value.strip()
        digest = _digest(sent)
        # Every key is compared, so that the time tells nothing about which one came close.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise RequestError(
                "a valid API key is needed: send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                status=401,
            )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
