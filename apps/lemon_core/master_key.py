"""The key under which secrets are stored, and the chain of places that may hold it.

Places are asked in order and the first one with an entry decides. An entry that is no key ends the
search, because going on would use another key than the one that was meant; only a keychain is
passed over, since people rarely know what is in theirs. Nothing is remembered: a key that was
changed outside counts from the next use.
"""

from __future__ import annotations

import binascii
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from lemon_core.key_providers import EnvKey, FileKey, KeychainKey
from lemon_core.logs import get_logger
from lemon_core.paths import PathSettings
from lemon_core.secret_errors import SecretsError

log = get_logger("lemon_core.master_key")

ProviderName = Literal["keychain", "env", "file"]
OnInvalid = Literal["skip", "stop"]

KEY_BYTES: Final = 32


class KeyProvider(Protocol):
    """A place that may hold the master key."""

    @property
    def name(self) -> str:
        """The word for this place in messages, status and `target`."""

    @property
    def on_invalid(self) -> OnInvalid:
        """What the chain does about an entry here that is no key, or that cannot be read."""

    def available(self) -> bool:
        """Whether this machine has such a place."""

    async def fetch(self) -> str | None:
        """The entry as text, None when there is none; raises `SecretsError` when unreadable."""

    async def put(self, text: str, *, force: bool) -> bool:
        """Write the entry; False when this kind of place is never written.

        Raises `SecretsError`: `key_file_exists` without `force`, or `master_key_not_written`.
        """


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A usable key and the name of the place that held it."""

    key: bytes = field(repr=False)
    source: str


@dataclass(frozen=True, slots=True)
class KeyLocations:
    """Where the chain looks, in which order; a `~` in `key_file` is the runtime's home."""

    order: tuple[ProviderName, ...] = ("keychain", "env", "file")
    keychain_service: str = "Lemon Secrets"
    keychain_account: str = "default"
    variable: str = "LEMON_SECRETS_MASTER_KEY"
    key_file: str = "~/.lemon/secrets_master_key"


def default_providers(
    paths: PathSettings,
    environ: Mapping[str, str],
    locations: KeyLocations | None = None,
) -> tuple[KeyProvider, ...]:
    """The providers of `locations`, for the home of `paths` and nobody else's."""
    at = KeyLocations() if locations is None else locations
    made: dict[ProviderName, KeyProvider] = {
        "keychain": KeychainKey(at.keychain_service, at.keychain_account, home=paths.home),
        "env": EnvKey(environ, at.variable),
        "file": FileKey(paths.expand(at.key_file), state_dir=paths.state_dir),
    }
    return tuple(made[name] for name in at.order)


def parse_master_key(text: str, *, allow_legacy_raw_keys: bool = False) -> bytes:
    """The key that `text` writes down: base64 of at least 32 bytes.

    Raises `SecretsError`: `weak_master_key` for other text of that length, which counts as it is
    under `allow_legacy_raw_keys`, and `invalid_master_key` for anything shorter.
    """
    raw = text.strip().encode("utf-8", "surrogateescape")
    try:
        decoded = b64decode(raw, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if len(decoded) >= KEY_BYTES:
        return decoded
    if len(raw) < KEY_BYTES:
        raise SecretsError("invalid_master_key", f"a master key is base64 of {KEY_BYTES} bytes")
    if not allow_legacy_raw_keys:
        raise SecretsError(
            "weak_master_key", f"a master key is base64 of {KEY_BYTES} random bytes, not a phrase"
        )
    return raw


class MasterKeyChain:
    """The places of the master key, asked in order."""

    def __init__(
        self, providers: Sequence[KeyProvider], *, allow_legacy_raw_keys: bool = False
    ) -> None:
        self.providers = tuple(providers)
        self._allow_legacy_raw_keys = allow_legacy_raw_keys
        self._told: set[str] = set()

    def parse(self, text: str) -> bytes:
        """`text` as a key by this chain's rules; raises as `parse_master_key`."""
        return parse_master_key(text, allow_legacy_raw_keys=self._allow_legacy_raw_keys)

    async def load(self) -> MasterKey:
        """The first usable key.

        Raises `SecretsError`: `missing_master_key` when no place has one, `weak_master_key`,
        `invalid_master_key` or `master_key_unreadable` for an entry that ends the search.
        """
        for provider in self.providers:
            found = await self._usable(provider)
            if found is not None:
                return found
        asked = ", ".join(str(place) for place in self.providers if place.available())
        raise SecretsError("missing_master_key", f"there is no master key (looked in: {asked})")

    async def init_master_key(self, target: str | None = None, *, force: bool = False) -> str:
        """Write a fresh random key and return the name of the place.

        The place is `target` or else the first one that can be written; a place that fails ends
        the attempt, so that no second key appears elsewhere. Raises `SecretsError`:
        `key_file_exists` when any place has an entry and `force` is False, `master_key_shadowed`
        when an entry in front of the place would be used instead, `unknown_key_provider`,
        `master_key_unreadable` and `master_key_not_written`.
        """
        places = [provider for provider in self.providers if provider.available()]
        if not force:
            await self._refuse_existing(places, target)
        for provider in places:
            if target is not None and provider.name != target:
                await self._refuse_shadow(provider, target)
            elif await provider.put(b64encode(os.urandom(KEY_BYTES)).decode(), force=force):
                return provider.name
            elif target is None:
                await self._refuse_shadow(provider, "the new key")
            else:
                raise _unwritable(target)
        if target is None:
            raise SecretsError("master_key_not_written", "no place for a master key can be written")
        raise _unwritable(target)

    async def _usable(self, provider: KeyProvider) -> MasterKey | None:
        if not provider.available():
            return None
        try:
            text = await provider.fetch()
            return None if text is None else MasterKey(self.parse(text), provider.name)
        except SecretsError as exc:
            if provider.on_invalid == "stop":
                raise SecretsError(exc.code, f"the master key in {provider}: {exc}") from exc
            if provider.name not in self._told:
                self._told.add(provider.name)
                log.warning("secrets.master_key_skipped", provider=provider.name, code=exc.code)
            return None

    async def _refuse_existing(self, places: Sequence[KeyProvider], target: str | None) -> None:
        for provider in places:
            try:
                found = await provider.fetch()
            except SecretsError:
                # A keychain that does not answer shall not keep anybody from choosing the file.
                if provider.on_invalid == "skip" and target not in (None, provider.name):
                    continue
                raise
            if found is not None:
                raise SecretsError(
                    "key_file_exists",
                    f"{provider} holds a master key: a new one makes every stored secret "
                    "unreadable, and is written with force only",
                )

    async def _refuse_shadow(self, provider: KeyProvider, target: str) -> None:
        if await self._usable(provider) is not None:
            raise SecretsError(
                "master_key_shadowed",
                f"the master key in {provider} is used before {target}: remove it first",
            )


def _unwritable(target: str) -> SecretsError:
    return SecretsError(
        "unknown_key_provider", f"{target!r} is no place of this machine that can be written"
    )
