"""Encryption of single secrets: AES-256-GCM under a key of its own for every record.

The record's key comes from the master key and a random salt (HKDF-SHA256, RFC 5869), so that no two
records share a key and a nonce can never repeat under one. The version is authenticated along with
the text. `cryptography` is imported at the first use: most commands never touch a secret.
"""

from __future__ import annotations

import binascii
import os
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Final

VERSION: Final = "lemon-secrets-v1"

_INFO: Final = VERSION.encode()
_SALT_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32


class Undecipherable(Exception):
    """The sealed text was changed, is damaged, or belongs to another master key."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encrypted text as it is stored: base64; the 16-byte tag ends the ciphertext."""

    ciphertext: str = field(repr=False)
    nonce: str = field(repr=False)
    salt: str = field(repr=False)


def seal(plain: bytes, master: bytes) -> Sealed:
    """`plain` encrypted under `master`, with a fresh salt and nonce."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    ciphertext = AESGCM(_derived(master, salt)).encrypt(nonce, plain, _INFO)
    return Sealed(*(b64encode(part).decode() for part in (ciphertext, nonce, salt)))


def unseal(sealed: Sealed, master: bytes) -> bytes:
    """The text of `sealed`; raises `Undecipherable`."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        ciphertext = b64decode(sealed.ciphertext, validate=True)
        nonce = b64decode(sealed.nonce, validate=True)
        salt = b64decode(sealed.salt, validate=True)
    except (binascii.Error, ValueError):
        raise Undecipherable from None
    if len(nonce) != _NONCE_BYTES or len(salt) != _SALT_BYTES:
        raise Undecipherable
    try:
        return AESGCM(_derived(master, salt)).decrypt(nonce, ciphertext, _INFO)
    except InvalidTag:
        raise Undecipherable from None


def _derived(master: bytes, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=salt, info=_INFO).derive(master)
