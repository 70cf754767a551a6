"""The wire APIs that the adapter suite runs over: one row each.

A row says what cannot be the same everywhere: the provider and base URL, how ids and signatures
look in the final message, and where a request holds its texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lemon_ai import Event, Model, ModelCost, TextContent, ThinkingContent, ToolCall
from lemon_ai.adapters.anthropic_stream import AnthropicStreamParser
from lemon_ai.adapters.bedrock_stream import BedrockStreamParser, EventStreamDecoder
from lemon_ai.adapters.google_stream import GoogleStreamParser
from lemon_ai.adapters.openai_chat_stream import ChatStreamParser
from lemon_ai.adapters.openai_responses_stream import ResponsesStreamParser
from lemon_ai.adapters.streaming import Decoder, WireParser
from lemon_ai.events import TerminalEvent
from lemon_ai.partial import PartialMessage
from lemon_ai.sse import SSEDecoder
from lemon_ai.testing import FakeProviderServer, FakeToolCall, Turn
from lemon_ai.testing.wires import WIRES, Wire
from lemon_ai.testing.wires.base import argument_text, joined
from lemon_ai.text import dump_json, parse_arguments
from lemon_ai.types import AssistantContent

Json = Mapping[str, Any]
PRICE = ModelCost(input=1, output=10, cache_read=0.1, cache_write=2)


@dataclass(frozen=True)
class ApiCase:
    """One wire API.

    `key`: the headers that carry the key `sk-x`. `thinking_signature`, `text_signature` and
    `call_id` give what the message holds for a turn (the number of a call counts from 1).
    `texts` lists what the messages of a request say, oldest first, the system prompt apart;
    `calls` the ids of its tool calls, `results` the ids and texts of their results.
    `legal_id` is the form of an id.
    `counts_cache_writes` and `tiers`: what the API's usage and request know. `whole_calls`: calls
    do not come in pieces. `missing_key`: what the error names where a key is needed everywhere.
    """

    api: str
    provider: str
    key: Json
    texts: Callable[[Json], list[str]]
    calls: Callable[[Json], list[str]]
    results: Callable[[Json], list[tuple[str, str]]]
    new_parser: Callable[[PartialMessage], WireParser]
    thinking_signature: Callable[[Turn], str | None]
    text_signature: Callable[[Turn], str | None] = lambda turn: None
    call_id: Callable[[FakeToolCall, int], str] = lambda call, number: call.id or ""
    call_signature: Callable[[Turn, int], str | None] = lambda turn, number: None
    new_decoder: Callable[[], Decoder] = SSEDecoder
    counts_cache_writes: bool = True
    tiers: bool = False
    whole_calls: bool = False
    missing_key: str | None = None
    max_retries: int = 3
    legal_id: str = r"[A-Za-z0-9_-]{1,64}"
    compat: Json = field(default_factory=dict)

    @property
    def wire(self) -> Wire:
        """How the fake server speaks it."""
        return WIRES[self.api]

    def model(self, server: FakeProviderServer | None = None, **changes: Any) -> Model:
        """A priced model of this API that thinks and sees, at the server."""
        base_url = server.base_url_of(self.api) if server else "http://127.0.0.1:1"
        fields = {
            "id": "fake-model",
            "api": self.api,
            "provider": self.provider,
            "base_url": base_url,
            "reasoning": True,
            "input": ("text", "image"),
            "cost": PRICE,
            "context_window": 200_000,
            "max_tokens": 64_000,
            "compat": self.compat or None,
        }
        return Model.model_validate({**fields, **changes})

    def content(self, turn: Turn) -> list[AssistantContent]:
        """The blocks of the final message."""
        blocks: list[AssistantContent] = []
        if turn.thinking:
            signature = self.thinking_signature(turn)
            text = joined(turn.thinking)
            blocks.append(ThinkingContent(thinking=text, thinking_signature=signature))
        if turn.text:
            signature = self.text_signature(turn)
            blocks.append(TextContent(text=joined(turn.text), text_signature=signature))
        for number, call in enumerate(turn.tool_calls, 1):
            arguments = parse_arguments(argument_text(call))[0]
            call_id = self.call_id(call, number)
            signature = self.call_signature(turn, number)
            block = ToolCall(id=call_id, name=call.name, arguments=arguments)
            blocks.append(block.model_copy(update={"thought_signature": signature}))
        return blocks

    def bytes_of(self, turn: Turn) -> bytes:
        """The whole answer."""
        return self.wire.render(turn, "fake-model").whole()

    def parse(self, pieces: Iterable[bytes]) -> tuple[list[Event], TerminalEvent]:
        """All events of an answer whose bytes arrive in these pieces, and its terminal event."""
        partial = PartialMessage(self.model(), timestamp=1)
        parser, decoder = self.new_parser(partial), self.new_decoder()
        events: list[Event] = []
        complete = False
        for piece in pieces:
            complete = complete or any(parser.feed(event) for event in decoder.feed(piece))
            events += partial.drain()
        if not complete:
            any(parser.feed(event) for event in decoder.finish())
        terminal = parser.finish(None)
        return [*events, *partial.drain(), terminal], terminal


# -- what the requests say -----------------------------------------------------------------------


def _part_texts(content: object) -> Iterator[str]:
    """Every text in a message's content, nested results included, and the names of calls."""
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part.get("text"), str):
            yield part["text"]
        yield from _part_texts(part.get("content"))


def chat_texts(body: Json) -> list[str]:
    """Chat completions and Anthropic: a list of messages."""
    roles = ("system", "developer")
    messages = [m for m in body["messages"] if m["role"] not in roles]
    return [text for message in messages for text in _part_texts(message["content"])]


def responses_texts(body: Json) -> list[str]:
    """Responses: a list of items."""
    texts: list[str] = []
    for item in body["input"]:
        if item.get("role") not in ("system", "developer"):
            texts += _part_texts(item.get("content"))
            texts += _part_texts(item.get("output"))
    return texts


def chat_calls(body: Json) -> list[str]:
    """The ids of the calls in a chat-completions request."""
    return [call["id"] for m in body["messages"] for call in m.get("tool_calls", ())]


def chat_results(body: Json) -> list[tuple[str, str]]:
    """The results in a chat-completions request."""
    return [(m["tool_call_id"], m["content"]) for m in body["messages"] if m["role"] == "tool"]


def _blocks(body: Json, kind: str) -> Iterator[Json]:
    for message in body["messages"]:
        if isinstance(message["content"], list):
            yield from (block for block in message["content"] if block["type"] == kind)


def anthropic_calls(body: Json) -> list[str]:
    """The ids of the calls in a request to Anthropic."""
    return [block["id"] for block in _blocks(body, "tool_use")]


def anthropic_results(body: Json) -> list[tuple[str, str]]:
    """The results in a request to Anthropic."""
    return [
        (block["tool_use_id"], "\n".join(_part_texts(block["content"])))
        for block in _blocks(body, "tool_result")
    ]


def responses_calls(body: Json) -> list[str]:
    """The ids of the calls in a Responses request."""
    return [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]


def responses_results(body: Json) -> list[tuple[str, str]]:
    """The results in a Responses request."""
    return [
        (item["call_id"], "\n".join(_part_texts(item["output"])))
        for item in body["input"]
        if item.get("type") == "function_call_output"
    ]


def google_texts(body: Json) -> list[str]:
    """Google: a list of contents; the results of functions say something too."""
    texts: list[str] = []
    for content in body["contents"]:
        texts += _part_texts(content["parts"])
        texts += _answers(content)
    return texts


def _answers(content: Json) -> Iterator[str]:
    for part in content["parts"]:
        if "functionResponse" in part:
            yield from part["functionResponse"]["response"].values()


def google_calls(body: Json) -> list[str]:
    """Google: calls are told apart by their ids, and by name and place where they have none."""
    return [name for name, _ in _named(body, "functionCall")]


def google_results(body: Json) -> list[tuple[str, str]]:
    """The results in a request to Google, by the same names as their calls."""
    found = _named(body, "functionResponse")
    return [(name, "".join(response["response"].values())) for name, response in found]


def _named(body: Json, kind: str) -> Iterator[tuple[str, Json]]:
    parts = [part for content in body["contents"] for part in content["parts"] if kind in part]
    for number, part in enumerate(parts):
        yield part[kind].get("id", f"{part[kind]['name']}-{number}"), part[kind]


def bedrock_texts(body: Json) -> list[str]:
    """Bedrock: a list of messages, whose blocks have the kind as their key."""
    return [text for message in body["messages"] for text in _block_texts(message["content"])]


def _block_texts(content: Sequence[Json]) -> Iterator[str]:
    for block in content:
        reasoning = block.get("reasoningContent", {}).get("reasoningText", {})
        yield from (part["text"] for part in (block, reasoning) if "text" in part)
        yield from _block_texts(block.get("toolResult", {}).get("content", ()))


def bedrock_calls(body: Json) -> list[str]:
    """The ids of the calls in a request to Bedrock."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    return [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]


def bedrock_results(body: Json) -> list[tuple[str, str]]:
    """The results in a request to Bedrock."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    results = [block["toolResult"] for block in blocks if "toolResult" in block]
    return [(r["toolUseId"], "\n".join(_block_texts(r["content"]))) for r in results]


def _google(api: str, provider: str, key: Json, missing_key: str | None = None) -> ApiCase:
    """The service signs the first call, or the text where there is no call."""
    return ApiCase(
        api=api,
        provider=provider,
        key=key,
        texts=google_texts,
        calls=google_calls,
        results=google_results,
        legal_id=r".+",
        new_parser=GoogleStreamParser,
        thinking_signature=lambda turn: None,
        text_signature=lambda turn: None if turn.tool_calls else turn.thinking_signature,
        call_signature=lambda turn, number: turn.thinking_signature if number == 1 else None,
        counts_cache_writes=False,
        whole_calls=True,
        missing_key=missing_key,
        compat={"thinking_style": "gemini_2_5_flash"},
    )


def _reasoning_item(turn: Turn) -> str:
    item = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": joined(turn.thinking)}],
        "encrypted_content": turn.thinking_signature,
    }
    return dump_json(item).decode()


# -- the rows ------------------------------------------------------------------------------------

_RESPONSES = ApiCase(
    api="openai_responses",
    provider="openai",
    key={"authorization": "Bearer sk-x"},
    texts=responses_texts,
    calls=responses_calls,
    results=responses_results,
    new_parser=lambda partial: ResponsesStreamParser(partial, None),
    thinking_signature=_reasoning_item,
    text_signature=lambda turn: '{"id":"msg_1"}',
    call_id=lambda call, number: f"{call.id}|fc_{number}",
    tiers=True,
)
CASES: Sequence[ApiCase] = (
    ApiCase(
        api="openai_completions",
        provider="custom",
        key={"authorization": "Bearer sk-x"},
        texts=chat_texts,
        calls=chat_calls,
        results=chat_results,
        legal_id=r".{1,40}",
        new_parser=lambda partial: ChatStreamParser(partial, None),
        thinking_signature=lambda turn: "reasoning_content",
        tiers=True,
    ),
    _RESPONSES,
    replace(
        _RESPONSES,
        api="azure_openai_responses",
        provider="azure_openai_responses",
        key={"api-key": "sk-x"},
        missing_key="AZURE_OPENAI_API_KEY",
    ),
    ApiCase(
        api="anthropic_messages",
        provider="anthropic",
        key={"x-api-key": "sk-x"},
        texts=chat_texts,
        calls=anthropic_calls,
        results=anthropic_results,
        new_parser=AnthropicStreamParser,
        thinking_signature=lambda turn: turn.thinking_signature,
        max_retries=2,
    ),
    _google("google_generative_ai", "google", {"x-goog-api-key": "sk-x"}),
    _google(
        "google_vertex",
        "google_vertex",
        {"authorization": "Bearer sk-x"},
        missing_key="access_token",
    ),
    ApiCase(
        api="bedrock_converse_stream",
        provider="amazon_bedrock",
        key={"authorization": "Bearer sk-x"},
        texts=bedrock_texts,
        calls=bedrock_calls,
        results=bedrock_results,
        new_parser=BedrockStreamParser,
        new_decoder=EventStreamDecoder,
        thinking_signature=lambda turn: turn.thinking_signature,
        missing_key="aws_access_key_id",
        compat={"thinking_style": "budget", "supports_cache_points": True},
    ),
)
