"""Secrets, encrypted in the store.

Values leave only through `get`, `resolve` and `fetch_value`; everything else gives metadata. A
secret is found by owner and name; a variable of the same name in the environment stands in for one
that is not stored or cannot be read.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Literal

import anyio

from lemon_core.bus import SYSTEM_TOPIC, Bus
from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.master_key import MasterKeyChain
from lemon_core.secret_cipher import VERSION, seal
from lemon_core.secret_errors import SecretsCode, SecretsError
from lemon_core.secret_record import (
    TABLE,
    Record,
    SecretInfo,
    SecretKey,
    decrypted,
    info_of,
    parse_record,
    plain_bytes,
    secret_key,
)
from lemon_core.store import ABSENT, PutValue, Store, StoreError
from lemon_core.system_events import SecretChanged

__all__ = ["Resolved", "SecretInfo", "Secrets", "SecretsError", "SecretsStatus"]

log = get_logger("lemon_core.secrets")

DEFAULT_OWNER: Final = "default"
Source = Literal["store", "env"]

# The class has a method called `list`.
_Rows = list[tuple[SecretKey, Record]]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value and where it came from."""

    value: str = field(repr=False)
    source: Source


@dataclass(frozen=True, slots=True)
class SecretsStatus:
    """Whether secrets can be stored and read.

    `source` is the place of the master key, or None, with the reason as an error code in `problem`;
    `env_fallback` tells whether the place `env` holds a key.
    """

    configured: bool
    source: str | None
    problem: SecretsCode | None
    keychain_available: bool
    env_fallback: bool
    owner: str
    count: int


class Secrets:
    """The secrets of one runtime.

    `environ` is where variables are looked up, and from where `import_from_env` takes one away on
    demand. Every method may raise `StoreError`: a store that does not answer must not read as "not
    stored".
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        keys: MasterKeyChain,
        bus: Bus,
        environ: MutableMapping[str, str],
    ) -> None:
        self._store, self._clock, self._bus = store, clock, bus
        self._environ = environ
        self.keys = keys
        # Held over the store: what `rekey` has read may not change before it has written.
        self._changing = anyio.Lock()

    async def set(
        self,
        name: str,
        value: str,
        *,
        owner: str = DEFAULT_OWNER,
        provider: str = "manual",
        expires_at: int | None = None,
    ) -> SecretInfo:
        """Store `value`, whatever was there; raises `SecretsError`.

        The first storing stays `created_at`, usage counts from zero again. Codes:
        `invalid_secret_name`, `invalid_secret_value` and those of the master key.
        """
        key = secret_key(owner, name)
        plain = plain_bytes(value)
        async with self._changing:
            sealed = seal(plain, (await self.keys.load()).key)
            now = self._clock.now_ms()
            before = await self._record(key)
            kept = before is not None and not before.expired(now)
            record = Record(
                **asdict(sealed),
                version=VERSION,
                provider=provider,
                expires_at=expires_at,
                usage_count=0,
                last_used_at=None,
                created_at=before.created_at if before is not None and kept else now,
                updated_at=now,
            )
            await self._store.put(TABLE, key, asdict(record))
        self._tell(key, "set")
        return info_of(key, record)

    async def get(self, name: str, *, owner: str = DEFAULT_OWNER, count_use: bool = True) -> str:
        """The stored value; raises `SecretsError`.

        Counts the use, unless this is only a look. Codes: `not_found`, `expired` (it is deleted
        then), `decrypt_failed` and those of the master key.
        """
        key = secret_key(owner, name)
        async with self._changing:
            record = await self._record(key)
            if record is None:
                raise SecretsError("not_found", f"there is no secret {key[1]!r}")
            if not record.expired(self._clock.now_ms()):
                text = decrypted(key, record, (await self.keys.load()).key)
                if count_use:
                    await self._count_use(key, record)
                return text
        await self._drop(key, record)
        raise SecretsError("expired", f"the secret {key[1]!r} has expired: set it again")

    async def resolve(
        self,
        name: str,
        *,
        owner: str = DEFAULT_OWNER,
        env_fallback: bool = True,
        prefer_env: bool = False,
        count_use: bool = True,
    ) -> Resolved:
        """The value from the store or else from the variable called `name`, or the other way round.

        The variable also stands in for a secret that cannot be read. Raises what `get` does when
        neither is there; a blank variable is none.
        """
        found = self._environ.get(secret_key(owner, name)[1], "")
        variable = Resolved(found, "env") if found.strip() else None
        if prefer_env and variable is not None:
            return variable
        try:
            found = await self.get(name, owner=owner, count_use=count_use)
            return Resolved(found, "store")
        except SecretsError as exc:
            if not env_fallback or variable is None:
                raise
            if exc.code not in ("not_found", "expired"):
                log.warning("secrets.variable_stands_in", name=name, code=exc.code)
            return variable

    async def fetch_value(self, name: str, *, owner: str = DEFAULT_OWNER) -> str | None:
        """What `resolve` finds, or None when there is nothing; raises for an unreadable secret."""
        try:
            return (await self.resolve(name, owner=owner)).value
        except SecretsError as exc:
            if exc.code in ("not_found", "expired"):
                return None
            raise

    async def exists(self, name: str, *, owner: str = DEFAULT_OWNER) -> bool:
        """Whether the store has the secret and it has not expired; needs no master key."""
        record = await self._record(secret_key(owner, name))
        return record is not None and not record.expired(self._clock.now_ms())

    async def delete(self, name: str, *, owner: str = DEFAULT_OWNER) -> bool:
        """Remove the secret; False when there was none. Needs no master key."""
        key = secret_key(owner, name)
        async with self._changing:
            gone = await self._store.take(TABLE, key, ABSENT) is not ABSENT
        if gone:
            self._tell(key, "delete")
        return gone

    async def list(self, *, owner: str = DEFAULT_OWNER) -> tuple[SecretInfo, ...]:
        """Metadata by name; expired secrets are removed and not shown."""
        now = self._clock.now_ms()
        shown = []
        for key, record in await self._records():
            if key[0] != owner:
                continue
            if record.expired(now):
                await self._drop(key, record)
            else:
                shown.append(info_of(key, record))
        return tuple(sorted(shown, key=lambda info: info.name))

    async def status(self, *, owner: str = DEFAULT_OWNER) -> SecretsStatus:
        """Where the master key is and how many secrets there are; raises only `StoreError`."""
        source: str | None = None
        problem: SecretsCode | None = None
        try:
            source = (await self.keys.load()).source
        except SecretsError as exc:
            problem = exc.code
        places = {place.name: place for place in self.keys.providers if place.available()}
        env = places.get("env")
        return SecretsStatus(
            configured=source is not None,
            source=source,
            problem=problem,
            keychain_available="keychain" in places,
            env_fallback=env is not None and await env.fetch() is not None,
            owner=owner,
            count=len(await self.list(owner=owner)),
        )

    async def import_from_env(
        self,
        name: str,
        env_name: str | None = None,
        *,
        owner: str = DEFAULT_OWNER,
        delete_after: bool = False,
    ) -> SecretInfo:
        """Store the value of the variable `env_name` (default: `name`).

        With `delete_after` the variable is gone from this runtime's environment once the value is
        stored. Raises what `set` does, `env_not_found` and `env_empty`.
        """
        variable = secret_key(owner, name)[1] if env_name is None else env_name
        if variable not in self._environ:
            raise SecretsError("env_not_found", f"the variable {variable} is not set")
        value = self._environ[variable]
        if not value.strip():
            raise SecretsError("env_empty", f"the variable {variable} is empty")
        info = await self.set(name, value, owner=owner, provider="env")
        if delete_after:
            self._environ.pop(variable, None)
        return info

    async def rekey(self, new_master: str) -> int:
        """Encrypt every record of every owner under `new_master` and return how many there are.

        All or nothing: one record that cannot be read, or a refused write, leaves everything as it
        was. The caller puts `new_master` where the chain finds it; until then nothing is readable.
        Raises `decrypt_failed` and the codes of a master key, old or new.
        """
        new = self.keys.parse(new_master)
        async with self._changing:
            rows = await self._records()
            if not rows:
                return 0
            old = (await self.keys.load()).key
            writes = []
            for key, record in rows:
                sealed = seal(decrypted(key, record, old).encode(), new)
                changed = replace(record, **asdict(sealed))
                writes.append(PutValue(TABLE, key, asdict(changed)))
            await self._store.transaction(writes)
        return len(writes)

    async def _record(self, key: SecretKey) -> Record | None:
        value = await self._store.load(TABLE, key)
        return None if value is None else parse_record(key, value)

    async def _records(self) -> _Rows:
        found: _Rows = []
        for stored, value in await self._store.load_all(TABLE):
            owner, name = stored if isinstance(stored, tuple) else ("", stored)
            key = (str(owner), str(name))
            found.append((key, parse_record(key, value)))
        return found

    async def _count_use(self, key: SecretKey, record: Record) -> None:
        used = replace(
            record, usage_count=record.usage_count + 1, last_used_at=self._clock.now_ms()
        )
        try:
            # Another process may have set a new value meanwhile: that one is not to be undone.
            await self._store.compare_and_swap(TABLE, key, asdict(record), asdict(used))
        except StoreError as exc:
            # A full disk must not lock anybody out.
            log.warning("secrets.use_not_counted", name=key[1], error=str(exc))

    async def _drop(self, key: SecretKey, record: Record) -> None:
        """Remove an expired record, unless it was set anew."""
        try:
            gone = await self._store.compare_and_swap(TABLE, key, asdict(record), ABSENT)
        except StoreError as exc:
            log.warning("secrets.expired_not_removed", name=key[1], error=str(exc))
            return
        if gone:
            self._tell(key, "delete")

    def _tell(self, key: SecretKey, action: Literal["set", "delete"]) -> None:
        owner, name = key
        payload = SecretChanged(owner=owner, name=name, action=action)
        self._bus.publish_event(SYSTEM_TOPIC, "secret_changed", payload)
