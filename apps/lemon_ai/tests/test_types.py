"""Messages, models and options: shapes, loading, secrets."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from lemon_ai import (
    AssistantMessage,
    Context,
    ImageContent,
    Message,
    StreamOptions,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    get_text,
    get_thinking,
    get_tool_calls,
)
from lemon_ai.types import TaggedMessage, get_text_of

transcript: TypeAdapter[list[Message]] = TypeAdapter(list[TaggedMessage])

CONVERSATION: list[Message] = [
    UserMessage(content="look", timestamp=1),
    UserMessage(content=[TextContent(text="at"), ImageContent(data="aGk=")], timestamp=2),
    AssistantMessage(
        content=[
            ThinkingContent(thinking="hm", thinking_signature="s"),
            TextContent(text="ok"),
            ToolCall(id="c", name="ls", arguments={"path": "."}),
        ],
        api="a",
        provider="p",
        model="m",
        stop_reason="tool_use",
        timestamp=3,
    ),
    ToolResultMessage(tool_call_id="c", tool_name="ls", details={"n": 1}, timestamp=4),
]


def test_a_transcript_round_trips_through_json() -> None:
    assert transcript.validate_json(transcript.dump_json(CONVERSATION)) == CONVERSATION


def test_the_stored_shape_of_a_call() -> None:
    dumped = CONVERSATION[2].model_dump()
    assert dumped["role"] == "assistant"
    assert dumped["content"][2] == {
        "type": "tool_call",
        "id": "c",
        "name": "ls",
        "arguments": {"path": "."},
        "thought_signature": None,
        "arguments_error": None,
    }


def test_unknown_fields_and_older_blocks_load() -> None:
    stored = {
        "role": "assistant",
        "someday": True,
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "c", "name": "ls", "input": {"path": "."}, "extra": 1},
        ],
    }
    (message,) = transcript.validate_python([stored])
    assert isinstance(message, AssistantMessage)
    assert message.content == [
        ThinkingContent(thinking="hm", thinking_signature="s"),
        ToolCall(id="c", name="ls", arguments={"path": "."}),
    ]


def test_images_are_of_known_kinds() -> None:
    loaded = ImageContent.model_validate({"data": "x", "mime_type": "image/jpg"})
    assert loaded.mime_type == "image/jpeg"
    with pytest.raises(ValidationError):
        ImageContent.model_validate({"data": "x", "mime_type": "image/tiff"})


def test_adding_to_a_context_gives_a_new_one() -> None:
    empty = Context(system_prompt="x")
    context = empty.add_user_message("a").add_assistant_message(AssistantMessage())
    assert [m.role for m in context.messages] == ["user", "assistant"]
    assert empty.messages == ()
    assert context.system_prompt == "x"


def test_options_drop_unknown_keys_and_hide_secrets() -> None:
    options = StreamOptions.model_validate(
        {
            "api_key": "sk-canary",
            "headers": {"authorization": "sk-canary"},
            "provider_options": {"openai": {"api_key": "sk-canary"}},
            "whatever": 1,
        }
    )
    assert "sk-canary" not in repr(options)
    assert "sk-canary" not in options.model_dump_json()
    copied = options.model_copy(update={"max_tokens": 5})
    assert copied.headers == {"authorization": "sk-canary"}
    assert not hasattr(options, "whatever")


def test_readers() -> None:
    message = CONVERSATION[2]
    assert isinstance(message, AssistantMessage)
    assert (get_text(message), get_thinking(message)) == ("ok", "hm")
    assert [call.id for call in get_tool_calls(message)] == ["c"]
    assert [get_text_of(m) for m in CONVERSATION] == ["look", "at", "ok", ""]
