"""`openai_completions`: chat completions, as OpenAI and nearly every other server speak it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.openai_chat_request import build_body
from lemon_ai.adapters.openai_chat_stream import ChatStreamParser
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


class OpenAIChatAdapter:
    """`POST {base}/chat/completions` with server-sent events."""

    def __init__(self) -> None:
        self._tools = ToolCache()

    def events(self, request: AdapterRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Batches of events; see `Adapter`."""
        model, options, partial = request.model, request.options, request.partial
        body = build_body(model, request.base_url, request.context, options, self._tools)
        if body is None:
            return fail_only(partial, NOTHING_TO_SEND)
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if request.api_key:
            headers["authorization"] = f"Bearer {request.api_key}"
        call = WireCall(
            url=f"{request.base_url.rstrip('/')}/chat/completions",
            body=body,
            headers=merge_headers(headers, model.headers, options.headers),
            read_error=error_reader(dialect_of(model, request.base_url)),
        )
        return stream_call(request, call, lambda: ChatStreamParser(partial, options.service_tier))
