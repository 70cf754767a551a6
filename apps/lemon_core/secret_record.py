"""A secret as it lies in the store, and what of it may be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from lemon_core.secret_cipher import VERSION, Sealed, Undecipherable, unseal
from lemon_core.secret_errors import SecretsError
from lemon_core.store.rows import parse_row

TABLE: Final = "secrets_v1"

SecretKey = tuple[str, str]
"""Owner and name."""


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """What may be shown of a secret; times in milliseconds since the epoch."""

    owner: str
    name: str
    provider: str
    version: str
    expires_at: int | None
    usage_count: int
    last_used_at: int | None
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class Record:
    """A row of the table; key (owner, name)."""

    ciphertext: str = field(repr=False)
    nonce: str = field(repr=False)
    salt: str = field(repr=False)
    version: str
    provider: str
    expires_at: int | None
    usage_count: int
    last_used_at: int | None
    created_at: int
    updated_at: int

    def expired(self, now_ms: int) -> bool:
        """Whether its time is over at `now_ms`."""
        return self.expires_at is not None and now_ms >= self.expires_at

    def sealed(self) -> Sealed:
        """What is encrypted of it."""
        return Sealed(self.ciphertext, self.nonce, self.salt)


def secret_key(owner: object, name: object) -> SecretKey:
    """Where the secret lies; raises `SecretsError` `invalid_secret_name`."""
    if not isinstance(name, str) or not name.strip():
        raise SecretsError("invalid_secret_name", "a secret needs a name")
    if not isinstance(owner, str) or not owner.strip():
        raise SecretsError("invalid_secret_name", f"the secret {name!r} needs an owner")
    return owner, name.strip()


def plain_bytes(value: object) -> bytes:
    """`value` as what is encrypted; raises `SecretsError` `invalid_secret_value`."""
    if not isinstance(value, str) or not value:
        raise SecretsError("invalid_secret_value", "a secret's value is text and not empty")
    try:
        return value.encode()
    except UnicodeEncodeError:
        # Without the cause: its message shows a part of the value.
        raise SecretsError("invalid_secret_value", "a secret's value is valid Unicode") from None


def decrypted(key: SecretKey, record: Record, master: bytes) -> str:
    """The value of `record`; raises `SecretsError` `decrypt_failed`."""
    if record.version == VERSION:
        try:
            return unseal(record.sealed(), master).decode()
        except (Undecipherable, UnicodeDecodeError):
            pass
    raise SecretsError(
        "decrypt_failed",
        f"the secret {key[1]!r} cannot be decrypted: it is damaged or belongs to another master "
        "key: set it again",
    )


def parse_record(key: SecretKey, value: object) -> Record:
    """The stored `value`; raises `StoreCorrupt`."""
    return parse_row(Record, value, f"the secret {key[1]!r} of {key[0]}")


def info_of(key: SecretKey, record: Record) -> SecretInfo:
    """What may be shown of `record`."""
    owner, name = key
    return SecretInfo(
        owner=owner,
        name=name,
        provider=record.provider,
        version=record.version,
        expires_at=record.expires_at,
        usage_count=record.usage_count,
        last_used_at=record.last_used_at,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )
