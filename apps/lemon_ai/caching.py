"""Prompt caching: what asks a service to keep the beginning of a prompt.

`LEMON_CACHE_RETENTION=long` asks for the longer of a service's lifetimes, on its own host only:
elsewhere the field may be unknown. Services that are not here cache on their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from lemon_ai.compat import host_of
from lemon_ai.types import Compat, Model

RETENTION_VARIABLE: Final = "LEMON_CACHE_RETENTION"
MAX_KEY_LENGTH: Final = 64
# The longer lifetime of each vendor's own host, as its request says it.
LONG_TTL: Final[Mapping[str, str]] = {"api.anthropic.com": "1h", "api.openai.com": "24h"}


def wants_long(env: Mapping[str, str]) -> bool:
    """Whether the environment asks for long lifetimes."""
    return env.get(RETENTION_VARIABLE, "").strip().lower() == "long"


def cache_control(base_url: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The marker that Anthropic's API takes at the end of what it should keep."""
    marker = {"type": "ephemeral"}
    ttl = LONG_TTL.get(host_of(base_url)) if wants_long(env) else None
    return {**marker, "ttl": ttl} if ttl else marker


def prompt_cache_fields(
    model: Model, base_url: str, session_id: str | None, env: Mapping[str, str]
) -> dict[str, Any]:
    """The fields of a Responses request: requests of one session are kept together."""
    fields: dict[str, Any] = {}
    if session_id:
        fields["prompt_cache_key"] = cache_key(session_id)
    ttl = LONG_TTL.get(host_of(base_url)) if wants_long(env) else None
    if ttl:
        own = (model.compat or Compat()).prompt_cache_ttl
        if own is not None:
            fields["prompt_cache_options"] = {"ttl": own}
        else:
            fields["prompt_cache_retention"] = ttl
    return fields


def cache_key(session_id: str) -> str:
    """The session's id, or its hash where it is longer than the service takes."""
    if len(session_id) <= MAX_KEY_LENGTH:
        return session_id
    return hashlib.sha256(session_id.encode()).hexdigest()
