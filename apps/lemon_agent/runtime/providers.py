"""Which providers there are, where each one is, and whether it can answer.

What a row of `[providers.<name>]` says and what its variables say (`OPENAI_API_KEY`,
`OPENAI_BASE_URL`) have been merged by the configuration, the environment first. Key and base URL of
one row belong together: a key goes to its own row's base URL, or to the vendor's when the row sets
none, and nowhere else. A URL that a project's file has set gets only what is named beside it there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from lemon_agent.runtime.names import kind_of, normal_name
from lemon_agent.runtime.sources import Sources, sources_of
from lemon_ai.credentials import same_base
from lemon_ai.local_server import LOCAL_PROVIDER, is_installed
from lemon_ai.providers import PROVIDERS, Provider
from lemon_core.config.model import Provider as ProviderConfig

CHAT_COMPLETIONS: Final = "openai_completions"
_GCLOUD_FILE: Final = ".config/gcloud/application_default_credentials.json"
_AWS_FILES: Final = (".aws/credentials", ".aws/config")
# What botocore's chain takes from the environment.
_AWS_VARIABLES: Final = (
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


@dataclass(frozen=True, slots=True)
class ProviderAccess:
    """One provider as configured. `base_url` is None where the vendor's own host answers.

    `api_key` is the key where it is at hand without a look into the store; `sources` are all places
    of one. `row` is the configured block. `is_ready` without a key in the store; what the store
    makes ready is in the table that `Credentials.table` gives.
    """

    name: str
    api: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    models: tuple[str, ...] = ()
    is_ready: bool = False
    sources: Sources = field(default=Sources(), repr=False, compare=False)
    row: ProviderConfig | None = field(default=None, repr=False, compare=False)
    is_foreign: bool = False

    @property
    def is_custom(self) -> bool:
        """Whether the models are those of a server that the catalogue does not know."""
        return self.base_url is not None


class ProviderTable:
    """Every provider of the catalogue and of the configuration, in the order of preference.

    The catalogue's come first in its own order, then the configured ones; `local` is last.
    `foreign_urls` are the base URLs that a project's file has set, by provider.
    """

    def __init__(
        self,
        providers: Mapping[str, ProviderConfig],
        *,
        environ: Mapping[str, str] | None = None,
        foreign_urls: Mapping[str, str] | None = None,
        is_local_installed: Callable[[], bool] = is_installed,
    ) -> None:
        rows = {normal_name(name): row for name, row in providers.items()}
        foreign = {normal_name(name): url for name, url in (foreign_urls or {}).items()}
        names = [name for name in PROVIDERS if name != LOCAL_PROVIDER]
        names += [name for name in rows if name not in PROVIDERS and name != LOCAL_PROVIDER]
        accesses = (_access(name, rows.get(name), environ or {}, foreign) for name in names)
        self._accesses = {access.name: access for access in accesses if access is not None}
        self._is_local_installed = is_local_installed
        self._local: ProviderAccess | None = None

    def with_ready(self, names: Collection[str]) -> ProviderTable:
        """This table, with these providers ready too."""
        if not names:
            return self
        table = object.__new__(ProviderTable)
        table._accesses = {
            name: replace(access, is_ready=True) if name in names else access
            for name, access in self._accesses.items()
        }
        table._is_local_installed, table._local = self._is_local_installed, self._local
        return table

    @property
    def names(self) -> list[str]:
        """The providers' names, `local` last."""
        return [*self._accesses, LOCAL_PROVIDER]

    def get(self, name: str) -> ProviderAccess | None:
        """The provider with this name, in any spelling; None when there is none."""
        name = normal_name(name)
        return self.local if name == LOCAL_PROVIDER else self._accesses.get(name)

    @property
    def all(self) -> list[ProviderAccess]:
        """Every provider in order, `local` not counted."""
        return list(self._accesses.values())

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


def _access(
    name: str,
    row: ProviderConfig | None,
    environ: Mapping[str, str],
    foreign: Mapping[str, str],
) -> ProviderAccess | None:
    """The provider, or None for a row that names neither a known vendor nor a server."""
    vendor = PROVIDERS.get(name)
    base_url = row.base_url if row else None
    if vendor is None and base_url is None:
        return None
    is_foreign = base_url is not None and foreign.get(name) == base_url
    if vendor is not None and vendor.is_server:
        base_url = base_url or vendor.base_url
    elif vendor is not None and base_url is not None and same_base(base_url, vendor.base_url):
        base_url = None
    sources = sources_of(name, row, environ, is_foreign=is_foreign)
    found = ProviderAccess(
        name=name,
        api=_api(vendor, row, base_url),
        base_url=base_url,
        api_key=sources.value,
        models=row.models if row else (),
        sources=sources,
        row=row,
        is_foreign=is_foreign,
    )
    has_value = any(place.value is not None for place in sources.places)
    return replace(found, is_ready=is_ready(found, environ, has_key=has_value))


def _api(vendor: Provider | None, row: ProviderConfig | None, base_url: str | None) -> str:
    if vendor is not None and base_url is None:
        return vendor.api
    named = row.api if row is not None else None
    elsewhere = (vendor.api_elsewhere or vendor.api) if vendor is not None else None
    return named or elsewhere or CHAT_COMPLETIONS


def is_ready(access: ProviderAccess, environ: Mapping[str, str], *, has_key: bool) -> bool:
    """Whether the provider can answer, given whether some place holds a key for it."""
    vendor = PROVIDERS.get(access.name)
    if access.sources.problem is not None:
        return False
    match kind_of(access.name):
        case "local_server":
            return access.row is not None
        case "vertex":
            return has_key or _has_google_identity(access.row, environ)
        case "bedrock":
            return has_key or _has_aws_identity(access.row, environ)
        case "embedded":
            return False
        case "key":
            pass
    if vendor is not None and vendor.resource_url:
        return has_key and (access.base_url is not None or _has_resource(vendor, access, environ))
    # A vendor's host asks for a key; any other server may do without.
    return has_key or access.base_url is not None


def _has_resource(vendor: Provider, access: ProviderAccess, environ: Mapping[str, str]) -> bool:
    named = access.row is not None and access.row.resource_name is not None
    variables = (vendor.base_url_variable, vendor.resource_variable)
    return named or any(environ.get(variable or "") for variable in variables)


def _has_google_identity(row: ProviderConfig | None, environ: Mapping[str, str]) -> bool:
    if row is not None and (row.service_account_json or row.service_account_json_secret):
        return True
    named = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS_JSON")
    if any(environ.get(variable, "").strip() for variable in named):
        return True
    # A file that other tools left in the home is no wish to use this provider.
    is_wanted = row is not None or any(
        environ.get(variable) for variable in ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT")
    )
    return is_wanted and _in_home(environ, _GCLOUD_FILE)


def _has_aws_identity(row: ProviderConfig | None, environ: Mapping[str, str]) -> bool:
    if row is not None and row.access_key_id_secret and row.secret_access_key_secret:
        return True
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return True
    if any(environ.get(variable, "").strip() for variable in _AWS_VARIABLES):
        return True
    return row is not None and any(_in_home(environ, name) for name in _AWS_FILES)


def _in_home(environ: Mapping[str, str], name: str) -> bool:
    home = environ.get("HOME", "")
    return bool(home) and (Path(home) / name).is_file()
