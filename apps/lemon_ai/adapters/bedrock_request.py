"""The body of `converse-stream`. Key order is fixed: equal input, equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lemon_ai.adapters.anthropic_request import max_tokens_of
from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.told_calls import told_call, told_result
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.compat import dialect_of
from lemon_ai.text import dump_json
from lemon_ai.thinking import ClaudeThinking, bedrock_thinking
from lemon_ai.transform import (
    EMPTY_RESULT_TEXT,
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
    TextContent,
    ThinkingContent,
    Tool,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

CACHE_POINT = {"cachePoint": {"type": "default"}}

Json = dict[str, Any]


def build_body(request: AdapterRequest, tools: ToolCache) -> bytes | None:
    """The request body, or None when no message is left to send."""
    model, context = request.model, request.context
    dialect = dialect_of(model, request.base_url)
    history = transform_messages(context.messages, model, plain_id)
    thinking = _thinking(request)
    messages = _messages(history if thinking.keeps_history else without_thinking(history), model)
    if not messages:
        return None
    body: Json = {}
    if context.system_prompt and context.system_prompt.strip():
        body["system"] = [{"text": context.system_prompt}]
        if dialect.supports_cache_points:
            body["system"].append(CACHE_POINT)
    body["inferenceConfig"] = {"maxTokens": thinking.max_tokens}
    if thinking.temperature is not None:
        body["inferenceConfig"]["temperature"] = thinking.temperature
    is_free = not thinking.is_on and dialect.supports_forced_tool_choice
    if model.tools and (config := _tool_config(request, history, tools, is_free)):
        body["toolConfig"] = config
    if thinking.fields:
        betas = {"anthropic_beta": list(thinking.betas)} if thinking.betas else {}
        body["additionalModelRequestFields"] = {**thinking.fields, **betas}
    if dialect.supports_cache_points:
        _mark_last_user(messages)
    body["messages"] = messages
    return dump_json(body)


def is_claude(model: Model) -> bool:
    """Whether the model thinks as Claude does: its row says in which style."""
    return model.compat is not None and model.compat.thinking_style is not None


def _thinking(request: AdapterRequest) -> ClaudeThinking:
    model, options = request.model, request.options
    if not is_claude(model):
        model = model.model_copy(update={"reasoning": False})
    dialect = dialect_of(model, request.base_url)
    return bedrock_thinking(model, dialect, options, max_tokens_of(model, options))


# -- tools -------------------------------------------------------------------------------------


def _tool_config(
    request: AdapterRequest, history: Sequence[Message], tools: ToolCache, is_free: bool
) -> Json | None:
    """The tools of this call. There is no choice `none`, and a history with calls is refused
    without tools: then they stay."""
    called = _called(history)
    choice = request.options.tool_choice
    offered = request.context.tools
    if (choice == "none" or not offered) and not called:
        return None
    if not offered:
        return {"tools": [_named(name) for name in called]}
    config: Json = {"tools": tools.serialise(offered, _tool)}
    if choice is not None and choice != "none":
        config["toolChoice"] = _tool_choice(choice if is_free else "auto")
    return config


def _called(history: Sequence[Message]) -> Sequence[str]:
    """The names of the tools that the history has calls of."""
    blocks = (b for m in history if isinstance(m, AssistantMessage) for b in m.content)
    return list(dict.fromkeys(block.name for block in blocks if isinstance(block, ToolCall)))


def _tool(tool: Tool) -> Json:
    spec: Json = {"name": tool.name}
    if tool.description.strip():  # an empty one is refused
        spec["description"] = tool.description
    spec["inputSchema"] = {"json": {"type": "object", **tool.parameters}}
    return {"toolSpec": spec}


def _named(name: str) -> Json:
    """A tool of which only calls are left."""
    return {"toolSpec": {"name": name, "inputSchema": {"json": {"type": "object"}}}}


def _tool_choice(choice: str) -> Json:
    return {choice: {}} if choice in ("auto", "any") else {"tool": {"name": choice}}


# -- messages ----------------------------------------------------------------------------------


def _messages(history: Sequence[Message], model: Model) -> list[Json]:
    """The roles take turns: what has the same role shares a message."""
    out: list[Json] = []
    for message in history:
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        content = list(_content(message, model))
        if not content:
            continue
        if out and out[-1]["role"] == role:
            out[-1]["content"] += content
        else:
            out.append({"role": role, "content": content})
    return out


def _content(message: Message, model: Model) -> Iterator[Json]:
    match message:
        case UserMessage():
            if isinstance(message.content, str):
                yield {"text": message.content}
            else:
                yield from _visible(message.content)
        case AssistantMessage():
            yield from _answer(message.content, model)
        case ToolResultMessage():
            if model.tools:
                yield _tool_result(message)
            else:  # nothing but words for a model that takes no tools
                yield {"text": told_result(message)}
                yield from _visible([b for b in message.content if isinstance(b, ImageContent)])


def _visible(blocks: Sequence[TextContent | ImageContent]) -> Iterator[Json]:
    """The blocks but for blank texts, which the service refuses."""
    for block in blocks:
        if isinstance(block, ImageContent):
            kind = block.mime_type.removeprefix("image/")
            yield {"image": {"format": kind, "source": {"bytes": block.data}}}
        elif block.text.strip():
            yield {"text": block.text}


def _answer(blocks: Sequence[AssistantContent], model: Model) -> Iterator[Json]:
    for block in blocks:
        match block:
            case TextContent():
                if block.text.strip():
                    yield {"text": block.text}
            case ThinkingContent():
                yield from _reasoning(block, model)
            case ToolCall():
                use = {"toolUseId": block.id, "name": block.name, "input": block.arguments}
                yield {"toolUse": use} if model.tools else {"text": told_call(block)}


def _reasoning(block: ThinkingContent, model: Model) -> Iterator[Json]:
    signed = is_claude(model)
    if block.redacted_data:
        yield {"reasoningContent": {"redactedContent": block.redacted_data}}
    elif block.thinking_signature and signed:
        text = {"text": block.thinking, "signature": block.thinking_signature}
        yield {"reasoningContent": {"reasoningText": text}}
    elif not block.thinking.strip():
        return
    elif signed:  # unsigned, Claude refuses it as thinking
        yield {"text": block.thinking}
    else:
        yield {"reasoningContent": {"reasoningText": {"text": block.thinking}}}


def _tool_result(message: ToolResultMessage) -> Json:
    content = list(_visible(message.content)) or [{"text": EMPTY_RESULT_TEXT}]
    status = "error" if message.is_error else "success"
    result = {"toolUseId": message.tool_call_id, "content": content, "status": status}
    return {"toolResult": result}


def _mark_last_user(messages: list[Json]) -> None:
    """Have everything up to the end of the last user message kept."""
    for message in reversed(messages):
        if message["role"] == "user":
            message["content"].append(CACHE_POINT)
            return
