"""Typed access to the smaller shared tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Final, Literal

from lemon_core.clock import Clock
from lemon_core.store.core import ABSENT, Store
from lemon_core.store.errors import StoreCorrupt
from lemon_core.store.rows import parse_row
from lemon_core.tool_policy import InvalidToolPolicy, ToolPolicy

PolicyScope = Literal["agent", "channel", "session", "runtime"]
POLICY_TABLES: Final[Mapping[PolicyScope, str]] = {
    "agent": "agent_policies",
    "channel": "channel_policies",
    "session": "session_policies",
    "runtime": "runtime_policy",
}
RUNTIME_POLICY_KEY: Final = "global"
SETTINGS: Final = "session_settings"
PROGRESS: Final = "progress"


class ProgressStore:
    """Which run a progress message belongs to; in memory, because it lives as long as the run."""

    def __init__(self, store: Store) -> None:
        self._rows = store.memory_table(PROGRESS)

    def put(self, scope: str, message_id: str | int, run_id: str) -> None:
        """Tie the message to the run."""
        self._rows[(scope, message_id)] = run_id

    def get(self, scope: str, message_id: str | int) -> str | None:
        """The run of the message."""
        found = self._rows.get((scope, message_id))
        return None if found is None else str(found)

    def delete(self, scope: str, message_id: str | int) -> None:
        """Forget the message."""
        self._rows.pop((scope, message_id), None)


class Unset(Enum):
    """The type of `UNSET`: leave a field as it is."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """A session's sticky choices; None means none was made."""

    model: str | None = None
    thinking_level: str | None = None
    updated_at_ms: int | None = None


class SessionSettingsStore:
    """Sticky model and thinking level by session key; dropped when the session is reset."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def get(self, session_key: str) -> SessionSettings:
        """The session's choices; all None when it made none."""
        return _settings(session_key, await self._store.get(SETTINGS, session_key))

    async def patch(
        self,
        session_key: str,
        *,
        model: str | Unset | None = UNSET,
        thinking_level: str | Unset | None = UNSET,
    ) -> SessionSettings:
        """Change the given fields (None takes a choice back) and return the result."""
        while True:
            value = await self._store.get(SETTINGS, session_key)
            current = _settings(session_key, value)
            changed = replace(
                current,
                model=current.model if isinstance(model, Unset) else model,
                thinking_level=(
                    current.thinking_level if isinstance(thinking_level, Unset) else thinking_level
                ),
                updated_at_ms=self._clock.now_ms(),
            )
            expected = ABSENT if value is None else value
            if await self._store.compare_and_swap(SETTINGS, session_key, expected, asdict(changed)):
                return changed

    async def delete(self, session_key: str) -> None:
        """Forget the session's choices."""
        await self._store.delete(SETTINGS, session_key)


class PolicyStore:
    """Stored tool policies by scope. A damaged one raises: it never reads as "no policy"."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, scope: PolicyScope, key: str = RUNTIME_POLICY_KEY) -> ToolPolicy | None:
        """The policy of `key` in `scope`; raises `StoreError`, `StoreCorrupt` for a damaged one."""
        # Straight from the backend: an unavailable store must not read as "no policy" either.
        value = await self._store.load(POLICY_TABLES[scope], key)
        return None if value is None else _policy(scope, key, value)

    async def put(
        self, scope: PolicyScope, policy: ToolPolicy | Mapping[str, object], key: str = "global"
    ) -> ToolPolicy:
        """Validate and store `policy`; raises `InvalidToolPolicy` or `StoreError`."""
        parsed = policy if isinstance(policy, ToolPolicy) else ToolPolicy.parse(policy)
        await self._store.put(POLICY_TABLES[scope], key, parsed.dump())
        return parsed

    async def delete(self, scope: PolicyScope, key: str = RUNTIME_POLICY_KEY) -> None:
        """Remove the policy."""
        await self._store.delete(POLICY_TABLES[scope], key)

    async def list(self, scope: PolicyScope) -> dict[str, ToolPolicy]:
        """All policies of `scope` by key; raises as `get`."""
        rows = await self._store.load_all(POLICY_TABLES[scope])
        return {str(key): _policy(scope, str(key), value) for key, value in rows}


def _settings(session_key: str, value: object) -> SessionSettings:
    if value is None:
        return SessionSettings()
    return parse_row(SessionSettings, value, f"the settings of session {session_key}")


def _policy(scope: str, key: str, value: object) -> ToolPolicy:
    try:
        return ToolPolicy.parse(value)
    except InvalidToolPolicy as exc:
        raise StoreCorrupt(f"the stored {scope} policy of {key!r} is damaged: {exc}") from exc
