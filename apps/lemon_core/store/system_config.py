"""The overrides of the configuration that the control plane stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lemon_core.errors import LemonError
from lemon_core.store.core import Store

if TYPE_CHECKING:
    from lemon_core.config.contributed import Contributed

SYSTEM_CONFIG: Final = "system_config"


class InvalidOverride(LemonError):
    """A path or a value that no configuration may have; nothing was stored."""

    code = "invalid_config_override"

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path, self.detail = path, detail


class SystemConfigStore:
    """Values by dotted path, checked when they are put.

    They count from the next start or reload, below the environment. The sections `store` and
    `logging` cannot be among them: both are used before the store is open.
    """

    def __init__(self, store: Store, contributed: Contributed | None = None) -> None:
        self._store, self._contributed = store, contributed

    async def get(self, path: str) -> object | None:
        """The override at exactly `path`; None when there is none."""
        return await self._store.load(SYSTEM_CONFIG, path)

    async def put(self, path: str, value: object) -> None:
        """Store `value` for `path`; raises `InvalidOverride` or `StoreError`."""
        problem = self._problem(path, value)
        if problem is not None:
            raise InvalidOverride(path, problem)
        await self._store.put(SYSTEM_CONFIG, path, value)

    async def delete(self, path: str) -> bool:
        """Drop the override at exactly `path`; False when there was none."""
        return await self._store.take(SYSTEM_CONFIG, path) is not None

    async def list(self) -> dict[str, object]:
        """Every override by dotted path, sorted."""
        rows = await self._store.load_all(SYSTEM_CONFIG)
        return dict(sorted((str(path), value) for path, value in rows))

    def _problem(self, path: str, value: object) -> str | None:
        from lemon_core.config.contributed import NOTHING_CONTRIBUTED
        from lemon_core.config.layers import override_problem
        from lemon_core.config.load import tables_of

        contributed = self._contributed or NOTHING_CONTRIBUTED
        model, channels = contributed.used_by([tables_of({path: value})])
        return override_problem(model, channels, path, value)
