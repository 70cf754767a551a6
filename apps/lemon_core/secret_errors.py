"""What can go wrong with secrets and their master key; no message ever holds a value."""

from __future__ import annotations

from typing import ClassVar, Literal

from lemon_core.errors import LemonError

SecretsCode = Literal[
    "invalid_secret_name",
    "invalid_secret_value",
    "not_found",
    "expired",
    "decrypt_failed",
    "env_not_found",
    "env_empty",
    "missing_master_key",
    "weak_master_key",
    "invalid_master_key",
    "master_key_unreadable",
    "master_key_not_written",
    "master_key_shadowed",
    "key_file_exists",
    "unknown_key_provider",
]


class SecretsError(LemonError):
    """A secret or the master key is not there, not usable or not writable; `code` says which."""

    code: ClassVar[SecretsCode] = "not_found"

    def __init__(self, code: SecretsCode, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # here the code is a fact of the instance
