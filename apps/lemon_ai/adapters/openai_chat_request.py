"""The body of `POST {base}/chat/completions`. Key order is fixed: equal input, equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.compat import Dialect, dialect_of
from lemon_ai.text import dump_json, parse_object
from lemon_ai.thinking import chat_thinking, sampling_fields
from lemon_ai.transform import EMPTY_RESULT_TEXT, mistral_id, openai_chat_id, transform_messages
from lemon_ai.types import (
    AssistantMessage,
    Context,
    ImageContent,
    Message,
    Model,
    StreamOptions,
    TextContent,
    ThinkingContent,
    Tool,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")
IMAGE_RESULT_TEXT = "(see attached image)"
AFTER_RESULT_TEXT = "I have read the tool results."

Json = dict[str, Any]


def _tool(tool: Tool) -> Json:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": False,
        },
    }


def build_body(
    model: Model, base_url: str, context: Context, options: StreamOptions, tools: ToolCache
) -> bytes | None:
    """The request body, or None when no message is left to send."""
    dialect = dialect_of(model, base_url)
    rule = mistral_id if dialect.requires_mistral_tool_ids else openai_chat_id
    history = transform_messages(context.messages, model, rule)
    if not history:
        return None
    tool_fields = _tool_fields(model, dialect, context, history, options, tools)
    reasoning = chat_thinking(
        model, dialect, options.reasoning, with_tools=bool(context.tools) and model.tools
    )
    body: Json = {
        "model": model.id,
        "messages": [*_system(model, dialect, context), *_messages(history, dialect)],
        "stream": True,
        **_settings(dialect, options),
        **sampling_fields(model, options, reasoning.get("reasoning_effort")),
        **tool_fields,
        **reasoning,
    }
    if dialect.open_router_routing:
        body["provider"] = dialect.open_router_routing
    return dump_json(body)


def _settings(dialect: Dialect, options: StreamOptions) -> Json:
    fields: Json = {}
    if dialect.supports_usage_in_streaming:
        fields["stream_options"] = {"include_usage": True}
    if dialect.supports_store:
        fields["store"] = False
    if options.max_tokens is not None:
        fields[dialect.max_tokens_field] = options.max_tokens
    if options.service_tier is not None:
        fields["service_tier"] = options.service_tier
    return fields


def _tool_fields(
    model: Model,
    dialect: Dialect,
    context: Context,
    history: Sequence[Message],
    options: StreamOptions,
    tools: ToolCache,
) -> Json:
    if not model.tools:
        return {}
    if not context.tools:
        # Some gateways refuse a history with calls unless the field is there; others refuse an
        # empty list.
        needed = dialect.requires_tools_with_history and _has_calls(history)
        return {"tools": []} if needed else {}
    fields: Json = {"tools": tools.serialise(context.tools, _tool)}
    if options.tool_choice is not None:
        fields["tool_choice"] = _tool_choice(options.tool_choice)
    return fields


def _tool_choice(choice: str) -> str | Json:
    match choice:
        case "auto" | "none":
            return choice
        case "any":
            return "required"
        case name:
            return {"type": "function", "function": {"name": name}}


def _has_calls(history: Sequence[Message]) -> bool:
    return any(isinstance(m, ToolResultMessage) for m in history)


def _system(model: Model, dialect: Dialect, context: Context) -> list[Json]:
    if not context.system_prompt or not context.system_prompt.strip():
        return []
    developer = model.reasoning and dialect.supports_developer_role
    return [{"role": "developer" if developer else "system", "content": context.system_prompt}]


def _messages(history: Sequence[Message], dialect: Dialect) -> list[Json]:
    out: list[Json] = []
    images: list[ImageContent] = []
    previous: Message | None = None
    for message in history:
        if isinstance(previous, ToolResultMessage) and not isinstance(message, ToolResultMessage):
            # Tool messages hold text only, and their run must not be interrupted.
            out.extend(_image_message(images))
            images = []
            if dialect.requires_assistant_after_tool_result and isinstance(message, UserMessage):
                out.append({"role": "assistant", "content": AFTER_RESULT_TEXT})
        match message:
            case UserMessage():
                out.append({"role": "user", "content": _user_content(message)})
            case AssistantMessage():
                out.append(_assistant(message, dialect))
            case ToolResultMessage():
                out.append(_tool_result(message, dialect))
                images += [b for b in message.content if isinstance(b, ImageContent)]
        previous = message
    out.extend(_image_message(images))
    return out


def _user_content(message: UserMessage) -> str | list[Json]:
    if isinstance(message.content, str):
        return message.content
    blocks = [b for b in message.content if isinstance(b, ImageContent) or b.text.strip()]
    if not any(isinstance(block, ImageContent) for block in blocks):
        # Plain text is what every server takes.
        return "\n".join(block.text for block in blocks if isinstance(block, TextContent))
    return [_part(block) for block in blocks]


def _part(block: TextContent | ImageContent) -> Json:
    if isinstance(block, TextContent):
        return {"type": "text", "text": block.text}
    return {
        "type": "image_url",
        "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"},
    }


def _image_message(images: Sequence[ImageContent]) -> list[Json]:
    if not images:
        return []
    parts = [{"type": "text", "text": "Images from the tool results:"}, *map(_part, images)]
    return [{"role": "user", "content": parts}]


def _assistant(message: AssistantMessage, dialect: Dialect) -> Json:
    texts: list[str] = []
    extra: Json = {}
    calls: list[Json] = []
    details: list[Any] = []
    for block in message.content:
        match block:
            case TextContent():
                texts.append(block.text)
            case ThinkingContent():
                if dialect.requires_thinking_as_text:
                    texts.append(block.thinking)
                elif block.thinking_signature in REASONING_FIELDS:
                    field = block.thinking_signature
                    extra[field] = extra.get(field, "") + block.thinking
            case ToolCall():
                calls.append(_call(block))
                details += _details(block)
    text = "".join(texts)
    entry: Json = {"role": "assistant", "content": text if text.strip() else None, **extra}
    if calls:
        entry["tool_calls"] = calls
    if details:
        entry["reasoning_details"] = details
    return entry


def _call(call: ToolCall) -> Json:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": dump_json(call.arguments).decode()},
    }


def _details(call: ToolCall) -> list[Any]:
    detail = parse_object(call.thought_signature)
    return [detail] if detail else []


def _tool_result(message: ToolResultMessage, dialect: Dialect) -> Json:
    text = "\n".join(b.text for b in message.content if isinstance(b, TextContent))
    if not text.strip():
        has_image = any(isinstance(b, ImageContent) for b in message.content)
        text = IMAGE_RESULT_TEXT if has_image else EMPTY_RESULT_TEXT
    entry: Json = {"role": "tool", "tool_call_id": message.tool_call_id, "content": text}
    if dialect.requires_tool_result_name:
        entry["name"] = message.tool_name
    return entry
