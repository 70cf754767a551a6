"""`anthropic_messages`: Anthropic's Messages API, and the services that speak it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from lemon_ai.adapters.anthropic_request import betas, build_body
from lemon_ai.adapters.anthropic_stream import AnthropicStreamParser
from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.streaming import (
    NOTHING_TO_SEND,
    WireCall,
    error_reader,
    fail_only,
    merge_headers,
    stream_call,
)
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.compat import dialect_of
from lemon_ai.events import Event

API_VERSION = "2023-06-01"
MAX_RETRIES = 2


class AnthropicAdapter:
    """`POST {base}/v1/messages` with server-sent events."""

    def __init__(self) -> None:
        self._tools = ToolCache()

    def events(self, request: AdapterRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Batches of events; see `Adapter`."""
        body = build_body(request, self._tools)
        if body is None:
            return fail_only(request.partial, NOTHING_TO_SEND)
        call = WireCall(
            url=f"{request.base_url.rstrip('/').removesuffix('/v1')}/v1/messages",
            body=body,
            headers=merge_headers(
                _headers(request), request.model.headers, request.options.headers
            ),
            max_retries=MAX_RETRIES,
            read_error=error_reader(dialect_of(request.model, request.base_url)),
        )
        return stream_call(request, call, lambda: AnthropicStreamParser(request.partial))


def _headers(request: AdapterRequest) -> Mapping[str, str]:
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream",
        "anthropic-version": API_VERSION,
    }
    if request.api_key:
        headers["x-api-key"] = request.api_key
    if features := betas(request):
        headers["anthropic-beta"] = ",".join(features)
    return headers
