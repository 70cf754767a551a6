"""botocore's own client against the fake, and our requests against its model of the service: so
that fake and adapter cannot share one misreading."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from typing import Any

import anyio
import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from botocore.validate import ParamValidator

from lemon_ai import (
    Client,
    Context,
    Model,
    StreamOptions,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from lemon_ai.testing import FakeProviderServer, HttpError, Turn
from lemon_ai.tests.cloud_models import bedrock
from lemon_ai.tests.history import FULL_HISTORY, PNG
from lemon_ai.tests.sdk import FULL
from lemon_ai.tests.sigv4 import parts_of, signature_of
from lemon_ai.tests.support import LS

pytestmark = pytest.mark.anyio

KEY, SECRET = "AKIDEXAMPLE", "secret"
MODEL = "global.anthropic.claude-haiku-4-5-20251001-v1:0"
ASK = [{"role": "user", "content": [{"text": "Say hello"}]}]


@pytest.fixture
async def provider() -> AsyncIterator[FakeProviderServer]:
    async with FakeProviderServer() as server:
        yield server


@pytest.fixture
def sdk(provider: FakeProviderServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The vendor's client, pointed at the fake."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    client = botocore.session.Session().create_client(
        "bedrock-runtime",
        region_name="us-west-2",
        endpoint_url=provider.origin,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(retries={"total_max_attempts": 1}, proxies={}),
    )
    yield client
    client.close()


async def events(sdk: Any, **request: Any) -> list[dict[str, Any]]:
    """The events of one answer, read in a thread: the vendor's client waits."""

    def read() -> list[dict[str, Any]]:
        answer = sdk.converse_stream(modelId=MODEL, **{"messages": ASK, **request})
        with closing(answer["stream"]) as stream:
            return list(stream)

    return await anyio.to_thread.run_sync(read)


def joined(found: list[dict[str, Any]], *path: str) -> str:
    """One field of the deltas, put together."""
    texts: list[str] = []
    for event in found:
        value: Any = event.get("contentBlockDelta", {}).get("delta", {})
        for name in path:
            value = value.get(name, {}) if isinstance(value, Mapping) else {}
        texts += [value] if isinstance(value, str) else []
    return "".join(texts)


async def test_an_answer(provider: FakeProviderServer, sdk: Any) -> None:
    provider.enqueue(FULL)
    found = await events(sdk)
    assert found[0] == {"messageStart": {"role": "assistant"}}
    assert joined(found, "reasoningContent", "text") == "The user wants 日本."
    assert joined(found, "reasoningContent", "signature") == "c2lnbmF0dXJl"
    assert joined(found, "text") == "Hällo wörld 🍋"
    starts = [e["contentBlockStart"]["start"] for e in found if "contentBlockStart" in e]
    assert [start["toolUse"] for start in starts] == [
        {"toolUseId": "call_a", "name": "ls"},
        {"toolUseId": "call_b", "name": "ls"},
    ]
    assert joined(found, "toolUse", "input") == '{"path":"a.py"}{"path":"b"}'
    stop, metadata = found[-2:]
    assert stop["messageStop"]["stopReason"] == "tool_use"
    assert metadata["metadata"]["usage"] == {
        "inputTokens": 60,
        "outputTokens": 20,
        "totalTokens": 127,
        "cacheReadInputTokens": 40,
        "cacheWriteInputTokens": 7,
    }


async def test_redacted_thinking_and_a_filter(provider: FakeProviderServer, sdk: Any) -> None:
    provider.enqueue(Turn(redacted_thinking="b3BhcXVl", text="x", stop="filtered"))
    found = await events(sdk)
    deltas = [e["contentBlockDelta"]["delta"] for e in found if "contentBlockDelta" in e]
    assert deltas[0] == {"reasoningContent": {"redactedContent": b"opaque"}}
    assert {"messageStop": {"stopReason": "content_filtered"}} in found


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "ValidationException"),
        (403, "AccessDeniedException"),
        (404, "ResourceNotFoundException"),
        (429, "ThrottlingException"),
        (500, "InternalServerException"),
        (503, "ServiceUnavailableException"),
    ],
)
async def test_refusals(provider: FakeProviderServer, sdk: Any, status: int, kind: str) -> None:
    provider.enqueue(Turn(http_error=HttpError(status, message="no such thing")))
    with pytest.raises(ClientError, match="no such thing") as caught:
        await events(sdk)
    assert caught.value.response["Error"]["Code"] == kind
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status


async def test_an_exception_inside_a_stream(provider: FakeProviderServer, sdk: Any) -> None:
    provider.enqueue(Turn(text="half", stream_error={"message": "busy", "code": 429}))
    with pytest.raises(EventStreamError, match="busy") as caught:
        await events(sdk)
    assert caught.value.response["Error"]["Code"] == "throttlingException"


@pytest.mark.behaviour("lemon_ai.21")
async def test_an_id_with_a_colon_is_signed_as_the_vendors_client_signs_it(
    provider: FakeProviderServer, sdk: Any, client: Client
) -> None:
    provider.enqueue(Turn(text="ok"), Turn(text="ok"))
    await events(sdk)
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "aws_region": "us-west-2"}
    options = StreamOptions(provider_options={"amazon_bedrock": keys})
    context = Context(messages=[UserMessage(content="Say hello")])
    await client.complete(ours(provider), context, options)
    theirs, mine = provider.requests
    assert theirs.raw_path == mine.raw_path
    assert "%3A0/converse-stream" in mine.raw_path
    for request in (theirs, mine):
        parts = parts_of(request.headers["authorization"])
        assert (parts["key"], parts["region"], parts["service"]) == (KEY, "us-west-2", "bedrock")
        assert parts["signature"] == signature_of(
            SECRET, "POST", request.raw_path, request.headers, request.raw_body
        )


# -- our requests --------------------------------------------------------------------------------

COMPAT: Mapping[str, Any] = {"thinking_style": "budget", "supports_cache_points": True}


def ours(provider: FakeProviderServer, **compat: Any) -> Model:
    return bedrock({**COMPAT, **compat}, id=MODEL, base_url=provider.origin)


@pytest.mark.parametrize(
    ("style", "level"), [("budget", "high"), ("adaptive", "xhigh"), ("budget", None)]
)
async def test_our_request_is_what_the_vendors_client_sends(
    provider: FakeProviderServer,
    sdk: Any,
    client: Client,
    style: str,
    level: ThinkingLevel | None,
) -> None:
    """Their client takes our body as its parameters and sends the very same document."""
    model = ours(provider, thinking_style=style)
    options = StreamOptions(api_key="sk-x", reasoning=level, tool_choice="ls", temperature=0.5)
    provider.enqueue(FULL, Turn(text="ok"), Turn(text="ok"))
    context = Context(system_prompt="Be Lemon.", messages=FULL_HISTORY, tools=(LS,))
    told = await client.complete(model, context, options)
    redacted = ThinkingContent(redacted_data="b3BhcXVl")
    told = told.model_copy(update={"content": [redacted, *told.content]})
    results = [
        ToolResultMessage(
            tool_call_id=block.id, tool_name="ls", content=[TextContent(text="one"), PNG]
        )
        for block in told.content
        if isinstance(block, ToolCall)
    ]
    context = Context(
        system_prompt="Be Lemon.", messages=[*FULL_HISTORY, told, *results], tools=(LS,)
    )
    await client.complete(model, context, options)
    mine = provider.requests[-1].body
    parameters = _with_blobs(mine)
    shape = sdk.meta.service_model.operation_model("ConverseStream").input_shape
    report = ParamValidator().validate({"modelId": MODEL, **parameters}, shape)
    assert not report.has_errors(), report.generate_report()
    await events(sdk, **parameters)
    assert provider.requests[-1].body == mine


def _with_blobs(value: Any, key: str = "") -> Any:
    """The document with bytes where the vendor's parameters have them."""
    if isinstance(value, Mapping):
        return {name: _with_blobs(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_blobs(item) for item in value]
    return b64decode(value) if key in ("bytes", "redactedContent") else value
