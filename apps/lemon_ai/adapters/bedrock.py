"""`bedrock_converse_stream`: any model on Amazon Bedrock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import quote

from lemon_ai.adapters.aws_signing import (
    AwsAuthorization,
    AwsCredentialsError,
    bedrock_base,
    region_of,
)
from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.bedrock_request import build_body
from lemon_ai.adapters.bedrock_stream import (
    CONTENT_TYPE,
    BedrockStreamParser,
    EventStreamDecoder,
    read_bedrock_error,
)
from lemon_ai.adapters.streaming import (
    NOTHING_TO_SEND,
    WireCall,
    fail_only,
    failed,
    merge_headers,
    stream_call,
)
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.events import Event


class BedrockAdapter:
    """`POST {base}/model/{id}/converse-stream` with event-stream frames.

    A call is signed once: its retries stay within the five minutes that a signature lives, as the
    whole stream does unless the caller asks for longer.
    """

    def __init__(self) -> None:
        self._tools = ToolCache()
        self._authorization = AwsAuthorization()

    def events(self, request: AdapterRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Batches of events; see `Adapter`."""
        body = build_body(request, self._tools)
        if body is None:
            return fail_only(request.partial, NOTHING_TO_SEND)
        return self._call(request, body)

    async def _call(
        self, request: AdapterRequest, body: bytes
    ) -> AsyncGenerator[Sequence[Event], None]:
        try:
            base = request.base_url.rstrip("/") or bedrock_base(region_of(request))
            # An id may be an ARN: it is one segment of the path.
            url = f"{base}/model/{quote(request.model.id, safe='')}/converse-stream"
            authorization = await self._authorization.headers(request, url, body)
        except AwsCredentialsError as exc:
            yield [failed(request.partial, exc.error)]
            return
        call = WireCall(
            url=url,
            body=body,
            headers=_headers(request, authorization),
            content_type=CONTENT_TYPE,
            new_decoder=EventStreamDecoder,
            read_error=read_bedrock_error,
        )
        parser = BedrockStreamParser
        async with aclosing(stream_call(request, call, lambda: parser(request.partial))) as batches:
            async for batch in batches:
                yield batch


def _headers(request: AdapterRequest, authorization: Mapping[str, str]) -> Mapping[str, str]:
    fixed = {"content-type": "application/json", "accept": CONTENT_TYPE, **authorization}
    return merge_headers(fixed, request.model.headers, request.options.headers)
