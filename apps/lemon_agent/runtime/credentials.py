"""Which providers there are, where each one is, and with which key.

What a row of `[providers.<name>]` says and what its variables say (`OPENAI_API_KEY`,
`OPENAI_BASE_URL`) have been merged by the configuration, the environment first; a project's file
can set neither. Key and base URL of one row belong together: a key goes to its own row's base URL,
or to the vendor's when the row sets none, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lemon_agent.runtime.names import canonical_name
from lemon_ai.credentials import same_base
from lemon_ai.local_server import LOCAL_PROVIDER, is_installed
from lemon_ai.providers import PROVIDERS
from lemon_core.config.model import Provider as ProviderConfig

CHAT_COMPLETIONS: Final = "openai_completions"


@dataclass(frozen=True, slots=True)
class ProviderAccess:
    """One provider as configured. `base_url` is None where the vendor's own host answers."""

    name: str
    api: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    models: tuple[str, ...] = ()
    is_ready: bool = False

    @property
    def is_custom(self) -> bool:
        """Whether the models are those of a server that the catalogue does not know."""
        return self.base_url is not None


class ProviderTable:
    """Every provider of the catalogue and of the configuration, in the order of preference.

    The catalogue's come first in its own order, then the configured ones; `local` is last.
    """

    def __init__(
        self,
        providers: Mapping[str, ProviderConfig],
        *,
        is_local_installed: Callable[[], bool] = is_installed,
    ) -> None:
        configured = {canonical_name(name): row for name, row in providers.items()}
        names = [name for name in PROVIDERS if name != LOCAL_PROVIDER]
        names += [name for name in configured if name not in PROVIDERS]
        accesses = (_access(name, configured.get(name)) for name in names)
        self._accesses = {access.name: access for access in accesses if access is not None}
        self._is_local_installed = is_local_installed
        self._local: ProviderAccess | None = None

    @property
    def names(self) -> list[str]:
        """The providers' names, `local` last."""
        return [*self._accesses, LOCAL_PROVIDER]

    def get(self, name: str) -> ProviderAccess | None:
        """The provider with this name, in any spelling; None when there is none."""
        name = canonical_name(name)
        return self.local if name == LOCAL_PROVIDER else self._accesses.get(name)

    @property
    def ready(self) -> list[ProviderAccess]:
        """The providers that can answer, `local` not counted."""
        return [access for access in self._accesses.values() if access.is_ready]

    @property
    def local(self) -> ProviderAccess:
        """The embedded model; ready when its packages are installed."""
        if self._local is None:
            api = PROVIDERS[LOCAL_PROVIDER].api
            self._local = ProviderAccess(LOCAL_PROVIDER, api, is_ready=self._is_local_installed())
        return self._local


def _access(name: str, row: ProviderConfig | None) -> ProviderAccess | None:
    """The provider, or None for a row that names neither a known vendor nor a server."""
    vendor = PROVIDERS.get(name)
    base_url = row.base_url if row else None
    if vendor is not None and base_url is not None and same_base(base_url, vendor.base_url):
        base_url = None
    api_key = (row.api_key or None) if row else None
    if vendor is None and base_url is None:
        return None
    api = vendor.api if vendor and base_url is None else (row and row.api) or CHAT_COMPLETIONS
    return ProviderAccess(
        name=name,
        api=api,
        base_url=base_url,
        api_key=api_key,
        models=row.models if row else (),
        # A vendor's host asks for a key; any other server may do without.
        is_ready=base_url is not None or api_key is not None,
    )
