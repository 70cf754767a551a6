"""Providers as rows of data: where they are, what they speak, where their key comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lemon_ai.local_server import LOCAL_PROVIDER


@dataclass(frozen=True, slots=True)
class Provider:
    """`base_url` is the vendor's own; `key_variables` in order of preference;
    `base_url_variable` names another base URL that the key then belongs to."""

    id: str
    api: str
    base_url: str = ""
    key_variables: tuple[str, ...] = ()
    base_url_variable: str | None = None


# In the order in which a provider is chosen when several are ready.
PROVIDERS: Mapping[str, Provider] = {
    row.id: row
    for row in (
        Provider(
            id="openai",
            api="openai_completions",
            base_url="https://api.openai.com/v1",
            key_variables=("OPENAI_API_KEY",),
            base_url_variable="OPENAI_BASE_URL",
        ),
        Provider(id=LOCAL_PROVIDER, api="openai_completions"),
    )
}
