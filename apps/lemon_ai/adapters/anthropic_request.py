"""The body of `POST {base}/v1/messages`. Key order is fixed: equal input, equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.caching import cache_control
from lemon_ai.compat import Dialect, dialect_of, host_of
from lemon_ai.text import dump_json
from lemon_ai.thinking import ClaudeThinking, claude_thinking
from lemon_ai.transform import (
    EMPTY_RESULT_TEXT,
    keep_newest,
    plain_id,
    transform_messages,
    without_thinking,
)
from lemon_ai.types import (
    AssistantContent,
    AssistantMessage,
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

INTERLEAVED_THINKING = "interleaved-thinking-2025-05-14"
VENDOR_HOST = "api.anthropic.com"
KIMI_LIMIT_VARIABLE = "LEMON_KIMI_MAX_REQUEST_MESSAGES"

Json = dict[str, Any]


def build_body(request: AdapterRequest, tools: ToolCache) -> bytes | None:
    """The request body, or None when no message is left to send."""
    model, options, context = request.model, request.options, request.context
    dialect = dialect_of(model, request.base_url)
    history = transform_messages(context.messages, model, plain_id)
    history = keep_newest(history, _limit(dialect, request.env))
    if not history:
        return None
    marker = cache_control(request.base_url, request.env)
    thinking = claude_thinking(model, dialect, options, max_tokens_of(model, options))
    if not thinking.keeps_history:
        history = without_thinking(history)
    messages = _messages(history)
    _mark_last_user(messages, marker)
    body: Json = {"model": model.id, "max_tokens": thinking.max_tokens, "stream": True}
    if context.system_prompt and context.system_prompt.strip():
        text = {"type": "text", "text": context.system_prompt, "cache_control": marker}
        body["system"] = [text]
    if thinking.temperature is not None:
        body["temperature"] = thinking.temperature
    if context.tools and model.tools:
        body |= _tool_fields(request, tools, marker, thinking)
    body |= thinking.fields
    body["messages"] = messages
    return dump_json(body)


def max_tokens_of(model: Model, options: StreamOptions) -> int:
    """The limit of the answer, which this API asks for: a third of what the model can do."""
    return options.max_tokens or max(model.max_tokens // 3, 1)


def betas(request: AdapterRequest) -> Sequence[str]:
    """What the beta header lists. Adaptive thinking interleaves by itself."""
    dialect = dialect_of(request.model, request.base_url)
    if dialect.beta_features is not None:
        return dialect.beta_features
    model, options = request.model, request.options
    thinking = claude_thinking(model, dialect, options, max_tokens_of(model, options))
    if thinking.is_on and dialect.thinking_style == "budget":
        return [INTERLEAVED_THINKING]
    return thinking.betas


def _limit(dialect: Dialect, env: Mapping[str, str]) -> int | None:
    if dialect.max_request_messages is None:
        return None
    given = env.get(KIMI_LIMIT_VARIABLE, "").strip()
    return int(given) if given.isdigit() and int(given) else dialect.max_request_messages


# -- tools -------------------------------------------------------------------------------------


def _tool_fields(
    request: AdapterRequest, tools: ToolCache, marker: Json, thinking: ClaudeThinking
) -> Json:
    dialect = dialect_of(request.model, request.base_url)
    is_vendor = host_of(request.base_url) == VENDOR_HOST
    fields: Json = {
        "tools": tools.serialise(
            request.context.tools,
            _eager_tool if is_vendor else _tool,
            variant=f"{is_vendor}{marker.get('ttl')}",
            last=lambda row: {**row, "cache_control": marker},
        )
    }
    choice = request.options.tool_choice
    if choice is not None:
        # The service refuses a forced call while the model thinks, from some models altogether.
        is_free = not thinking.is_on and dialect.supports_forced_tool_choice
        lowered = not is_free and choice != "none"
        fields["tool_choice"] = _tool_choice("auto" if lowered else choice)
    return fields


def _tool(tool: Tool) -> Json:
    schema = {"type": "object", **tool.parameters}
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


def _eager_tool(tool: Tool) -> Json:
    """Arguments come as the model writes them, not once they are whole."""
    return {**_tool(tool), "eager_input_streaming": True}


def _tool_choice(choice: str) -> Json:
    if choice in ("auto", "any", "none"):
        return {"type": choice}
    return {"type": "tool", "name": choice}


# -- messages ----------------------------------------------------------------------------------


def _messages(history: Sequence[Message]) -> list[Json]:
    out: list[Json] = []
    previous: Message | None = None
    for message in history:
        match message:
            case UserMessage():
                out.append({"role": "user", "content": _user_content(message)})
            case AssistantMessage():
                out.append({"role": "assistant", "content": list(_assistant(message.content))})
            case ToolResultMessage():
                # All results of one answer stand in one message.
                if not isinstance(previous, ToolResultMessage):
                    out.append({"role": "user", "content": []})
                out[-1]["content"].append(_tool_result(message))
        previous = message
    return out


def _user_content(message: UserMessage) -> str | list[Json]:
    if isinstance(message.content, str):
        return message.content
    return list(_visible(message.content))


def _visible(blocks: Sequence[TextContent | ImageContent]) -> Iterator[Json]:
    """The blocks but for blank texts, which the service refuses."""
    for block in blocks:
        if isinstance(block, ImageContent):
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            yield {"type": "image", "source": source}
        elif block.text.strip():
            yield {"type": "text", "text": block.text}


def _assistant(blocks: Sequence[AssistantContent]) -> Iterator[Json]:
    for block in blocks:
        match block:
            case TextContent():
                if block.text.strip():
                    yield {"type": "text", "text": block.text}
            case ThinkingContent():
                yield from _thinking(block)
            case ToolCall():
                yield {
                    "type": "tool_use",
                    "id": block.id,
                    "name": block.name,
                    "input": block.arguments,
                }


def _thinking(block: ThinkingContent) -> Iterator[Json]:
    if block.redacted_data:
        yield {"type": "redacted_thinking", "data": block.redacted_data}
    elif block.thinking_signature:
        yield {
            "type": "thinking",
            "thinking": block.thinking,
            "signature": block.thinking_signature,
        }
    elif block.thinking.strip():
        # Unsigned, the service refuses it as thinking.
        yield {"type": "text", "text": block.thinking}


def _tool_result(message: ToolResultMessage) -> Json:
    content = list(_visible(message.content)) or [{"type": "text", "text": EMPTY_RESULT_TEXT}]
    result: Json = {
        "type": "tool_result",
        "tool_use_id": message.tool_call_id,
        "content": content,
    }
    if message.is_error:
        result["is_error"] = True
    return result


def _mark_last_user(messages: list[Json], marker: Json) -> None:
    """Have everything up to the last block of the last user message kept."""
    for message in reversed(messages):
        if message["role"] == "user":
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            message["content"][-1]["cache_control"] = marker
            return
