"""How servers differ, as rows of data: detected from provider and host, and overridden field by
field by the model's own `compat`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

from lemon_ai.types import Compat, Model, ThinkingStyle, ThinkingWhenOff


@dataclass(frozen=True, slots=True)
class Dialect:
    """The answers to every question of `Compat`; the defaults are OpenAI's own service."""

    supports_store: bool = True
    supports_developer_role: bool = True
    supports_reasoning_effort: bool = True
    supports_reasoning_with_tools: bool = True
    supports_usage_in_streaming: bool = True
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_completion_tokens"
    requires_tool_result_name: bool = False
    requires_tools_with_history: bool = False
    requires_assistant_after_tool_result: bool = False
    requires_thinking_as_text: bool = False
    requires_mistral_tool_ids: bool = False
    thinking_format: Literal["openai", "zai"] = "openai"
    open_router_routing: dict[str, Any] | None = None
    thinking_style: ThinkingStyle = "budget"
    thinking_when_off: ThinkingWhenOff = "omit"
    thinking_display: Literal["summarized"] | None = None
    thinking_bound_to_history: bool = False
    beta_features: tuple[str, ...] | None = None
    prompt_cache_ttl: str | None = None
    empty_400: Literal["client", "context_length", "retry"] = "client"
    max_request_messages: int | None = None
    supports_forced_tool_choice: bool = True
    requires_thought_signatures: bool = False
    supports_images_in_results: bool = False
    supports_cache_points: bool = False


_OPENAI = Dialect()
_PLAIN = replace(_OPENAI, supports_store=False, supports_developer_role=False)
# A server nobody has described: the older field names, which every implementation takes.
_SERVER = replace(_PLAIN, max_tokens_field="max_tokens")

_CEREBRAS = replace(_PLAIN, empty_400="context_length")
_MISTRAL = replace(
    _SERVER,
    requires_tool_result_name=True,
    requires_thinking_as_text=True,
    requires_mistral_tool_ids=True,
    empty_400="context_length",
)
_KIMI = replace(_SERVER, empty_400="retry", max_request_messages=200)

# The part of a host name that tells the service, and its dialect.
_HOSTS: Mapping[str, Dialect] = {
    "api.openai.com": _OPENAI,
    "openai.azure.com": _OPENAI,
    "openrouter.ai": _OPENAI,
    "cerebras.ai": _CEREBRAS,
    "api.x.ai": replace(_PLAIN, supports_reasoning_effort=False),
    "mistral.ai": _MISTRAL,
    "moonshot.ai": _KIMI,
    "moonshot.cn": _KIMI,
    "kimi.com": _KIMI,
    "chutes.ai": _SERVER,
    "deepseek.com": _PLAIN,
    "opencode.ai": _PLAIN,
    "z.ai": replace(_PLAIN, supports_reasoning_effort=False, thinking_format="zai"),
}

# Where the host says nothing: a vendor's own name still tells what answers behind a proxy.
_PROVIDERS: Mapping[str, Dialect] = {
    "cerebras": _CEREBRAS,
    "kimi": _KIMI,
    "kimi_coding": _KIMI,
    "mistral": _MISTRAL,
}


def dialect_of(model: Model, base_url: str) -> Dialect:
    """What the server behind `base_url` understands."""
    found = _by_host(base_url) or _PROVIDERS.get(model.provider, _SERVER)
    return found if model.compat is None else _overridden(found, model.compat)


@lru_cache(maxsize=256)
def _by_host(base_url: str) -> Dialect | None:
    host = host_of(base_url)
    for name, dialect in _HOSTS.items():
        if host == name or host.endswith("." + name):
            return dialect
    return None


def _overridden(found: Dialect, compat: Compat) -> Dialect:
    return replace(found, **compat.model_dump(exclude_none=True))


def host_of(base_url: str) -> str:
    """The host name in a base URL, empty when there is none."""
    return urlsplit(base_url).hostname or ""
