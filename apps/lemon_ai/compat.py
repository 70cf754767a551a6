"""How chat-completions servers differ, as rows of data: detected from provider and host, and
overridden field by field by the model's own `compat`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

from lemon_ai.types import Compat, Model, ThinkingLevel


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


_OPENAI = Dialect()
_PLAIN = replace(_OPENAI, supports_store=False, supports_developer_role=False)
# A server nobody has described: the older field names, which every implementation takes.
_SERVER = replace(_PLAIN, max_tokens_field="max_tokens")

# The part of a host name that tells the service, and its dialect.
_HOSTS: Mapping[str, Dialect] = {
    "api.openai.com": _OPENAI,
    "openrouter.ai": _OPENAI,
    "cerebras.ai": _PLAIN,
    "api.x.ai": replace(_PLAIN, supports_reasoning_effort=False),
    "mistral.ai": replace(
        _SERVER,
        requires_tool_result_name=True,
        requires_thinking_as_text=True,
        requires_mistral_tool_ids=True,
    ),
    "chutes.ai": _SERVER,
    "deepseek.com": _PLAIN,
    "opencode.ai": _PLAIN,
    "z.ai": replace(_PLAIN, supports_reasoning_effort=False, thinking_format="zai"),
}


def dialect_of(model: Model, base_url: str) -> Dialect:
    """What the server behind `base_url` understands."""
    found = _by_host(base_url)
    return found if model.compat is None else _overridden(found, model.compat)


@lru_cache(maxsize=256)
def _by_host(base_url: str) -> Dialect:
    host = urlsplit(base_url).hostname or ""
    for name, dialect in _HOSTS.items():
        if host == name or host.endswith("." + name):
            return dialect
    return _SERVER


def _overridden(found: Dialect, compat: Compat) -> Dialect:
    return replace(found, **compat.model_dump(exclude_none=True))


def reasoning_fields(
    model: Model,
    dialect: Dialect,
    level: ThinkingLevel | Literal[False] | None,
    *,
    with_tools: bool,
) -> dict[str, object]:
    """The request fields that ask for this amount of thinking; empty for the model's own habit."""
    if model.reasoning and with_tools and not dialect.supports_reasoning_with_tools:
        return {"reasoning_effort": "none"}  # anything else, absence included, is refused
    if not model.reasoning or level is None:
        return {}
    if dialect.thinking_format == "zai":
        return {"thinking": {"type": "enabled" if level else "disabled"}}
    if not dialect.supports_reasoning_effort:
        return {}
    if level is False:
        return {"reasoning_effort": "none"} if "none" in model.reasoning_levels else {}
    return {"reasoning_effort": _nearest(level, model.reasoning_levels)}


def _nearest(level: ThinkingLevel, listed: tuple[str, ...]) -> str:
    """The level's own name where the model lists it (or lists nothing), else its neighbour."""
    if not listed or level in listed:
        return level
    neighbour = {"minimal": "low", "xhigh": "high"}.get(level, level)
    return neighbour if neighbour in listed else listed[-1]
