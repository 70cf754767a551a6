"""What a provider needs beside a key: project and region, resource and deployments, AWS keys.

Explicit options of a call win over the configuration, and that over the environment, which
lemon_ai's adapters read by themselves where nothing is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from lemon_agent.runtime.names import kind_of
from lemon_agent.runtime.providers import ProviderAccess
from lemon_ai import Model, StreamOptions
from lemon_core.config.model import Provider as ProviderConfig

Look = Callable[[str], Awaitable[str | None]]
"""The value of a stored secret by name."""

# The option, then where its value comes from in order: a key of the row, `*_secret` by name.
_ROWS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "vertex": {
        "project": ("project_secret", "project", "project_id"),
        "location": ("location_secret", "location"),
        "service_account_json": ("service_account_json_secret", "service_account_json"),
    },
    "bedrock": {
        "aws_region": ("region",),
        "aws_access_key_id": ("access_key_id_secret",),
        "aws_secret_access_key": ("secret_access_key_secret",),
        "aws_session_token": ("session_token_secret",),
    },
    "azure_openai_responses": {
        "resource_name": ("resource_name",),
        "api_version": ("api_version",),
        "deployment_name_map": ("deployment_name_map",),
    },
}
_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "project": ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"),
    "location": ("GOOGLE_CLOUD_LOCATION",),
}


def needs_options(name: str, row: ProviderConfig | None) -> bool:
    """Whether calls to this provider carry more than a key."""
    return row is not None and any(
        getattr(row, key) for keys in _table(name).values() for key in keys
    )


async def configured_options(
    access: ProviderAccess, environ: Mapping[str, str], look: Look
) -> dict[str, Any]:
    """The provider's own settings; empty for a provider that has none."""
    found: dict[str, Any] = {}
    if access.row is None:
        return found
    for option, keys in _table(access.name).items():
        value = await _first(access.row, keys, look)
        if value is None:
            variables = (environ.get(name, "").strip() for name in _VARIABLES.get(option, ()))
            value = next(filter(None, variables), None)
        if value is not None:
            found[option] = value
    return found


def with_provider_options(
    options: StreamOptions, model: Model, configured: Mapping[str, Any]
) -> StreamOptions:
    """The options of a call, filled up with what is configured for the model's provider."""
    given = options.provider_options
    # Those of the provider count more than those of its api, and these are the least of all.
    more = {key: value for key, value in configured.items() if key not in given.get(model.api, {})}
    if not more:
        return options
    merged = {**given, model.provider: {**more, **given.get(model.provider, {})}}
    return options.model_copy(update={"provider_options": merged})


def _table(name: str) -> Mapping[str, tuple[str, ...]]:
    return _ROWS.get(name) or _ROWS.get(kind_of(name), {})


async def _first(row: ProviderConfig, keys: tuple[str, ...], look: Look) -> object:
    for key in keys:
        value = getattr(row, key)
        if value and key.endswith("_secret"):
            value = await look(value)
        if value:
            return value
    return None
