"""The body of `POST {base}/responses`. Key order is fixed: equal input, equal bytes.

Nothing is stored at the service: what a later turn needs is sent again, the model's reasoning as
the encrypted items that came with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.caching import prompt_cache_fields
from lemon_ai.compat import dialect_of
from lemon_ai.text import dump_json, parse_object, truncate_bytes_utf8
from lemon_ai.thinking import openai_effort, sampling_fields
from lemon_ai.transform import (
    EMPTY_RESULT_TEXT,
    is_same_model,
    plain_id,
    responses_item_id,
    transform_messages,
)
from lemon_ai.types import (
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

MIN_OUTPUT_TOKENS: Final = 16  # the service refuses less
MAX_ID_LENGTH: Final = 64
# What a tool's output may take of the window, in bytes, within these bounds.
OUTPUT_SHARE: Final = 0.1
BYTES_PER_TOKEN: Final = 4
MIN_OUTPUT_BYTES: Final = 8_192
MAX_OUTPUT_BYTES: Final = 65_536

Json = dict[str, Any]


def build_body(request: AdapterRequest, model_name: str, tools: ToolCache) -> bytes | None:
    """The request body, or None when no message is left to send."""
    model, options, context = request.model, request.options, request.context
    history = transform_messages(context.messages, model, plain_id, responses_item_id)
    if not history:
        return None
    effort = openai_effort(model, options.reasoning)
    body: Json = {
        "model": model_name,
        "input": [*_system(request), *_items(history, model)],
        "stream": True,
        "store": False,
        **prompt_cache_fields(model, request.base_url, options.session_id, request.env),
        **_settings(options),
        **sampling_fields(model, options, effort),
    }
    if context.tools and model.tools:
        body["tools"] = tools.serialise(context.tools, _tool)
        body["tool_choice"] = _tool_choice(options.tool_choice or "auto")
        body["parallel_tool_calls"] = True
    if effort is not None:
        body["reasoning"] = {"effort": effort}
        if effort != "none":
            body["reasoning"]["summary"] = options.reasoning_summary
    if model.reasoning:
        body["include"] = ["reasoning.encrypted_content"]
    return dump_json(body)


def _settings(options: StreamOptions) -> Json:
    fields: Json = {}
    if options.max_tokens is not None:
        fields["max_output_tokens"] = max(options.max_tokens, MIN_OUTPUT_TOKENS)
    if options.service_tier is not None:
        fields["service_tier"] = options.service_tier
    return fields


def _tool(tool: Tool) -> Json:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }


def _tool_choice(choice: str) -> str | Json:
    match choice:
        case "auto" | "none":
            return choice
        case "any":
            return "required"
        case name:
            return {"type": "function", "name": name}


def _system(request: AdapterRequest) -> list[Json]:
    prompt = request.context.system_prompt
    if not prompt or not prompt.strip():
        return []
    dialect = dialect_of(request.model, request.base_url)
    developer = request.model.reasoning and dialect.supports_developer_role
    return [{"role": "developer" if developer else "system", "content": prompt}]


def _items(history: Sequence[Message], model: Model) -> Iterator[Json]:
    for number, message in enumerate(history):
        match message:
            case UserMessage():
                yield {"role": "user", "content": _user_content(message)}
            case AssistantMessage():
                yield from _answer(message, number, keeps_ids=is_same_model(message, model))
            case ToolResultMessage():
                yield _tool_result(message, model)


def _user_content(message: UserMessage) -> list[Json]:
    if isinstance(message.content, str):
        return [{"type": "input_text", "text": message.content}]
    return list(_visible(message.content))


def _visible(blocks: Sequence[TextContent | ImageContent]) -> Iterator[Json]:
    for block in blocks:
        if isinstance(block, ImageContent):
            url = f"data:{block.mime_type};base64,{block.data}"
            yield {"type": "input_image", "detail": "auto", "image_url": url}
        elif block.text.strip():
            yield {"type": "input_text", "text": block.text}


def _answer(message: AssistantMessage, number: int, *, keeps_ids: bool) -> Iterator[Json]:
    """The items of one answer. Reasoning with nothing behind it is refused, so it waits for what
    follows."""
    reasoning: list[Json] = []
    for index, block in enumerate(message.content):
        item: Json | None = None
        match block:
            case ThinkingContent():
                reasoning += _reasoning(block)
            case TextContent():
                item = _text(block, f"msg_{number}_{index}") if block.text.strip() else None
            case ToolCall():
                item = _call(block, keeps_id=keeps_ids)
        if item is not None:
            yield from reasoning
            reasoning = []
            yield item


def _reasoning(block: ThinkingContent) -> list[Json]:
    item = parse_object(block.thinking_signature)
    return [item] if item.get("type") == "reasoning" else []


def _text(block: TextContent, made_up_id: str) -> Json:
    signature = parse_object(block.text_signature)
    item: Json = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": block.text, "annotations": []}],
        "status": "completed",
        "id": _message_id(str(signature.get("id") or made_up_id)),
    }
    if signature.get("phase"):
        item["phase"] = signature["phase"]
    return item


def _message_id(found: str) -> str:
    if len(found) <= MAX_ID_LENGTH:
        return found
    return f"msg_{hashlib.sha256(found.encode()).hexdigest()[:32]}"


def _call(call: ToolCall, *, keeps_id: bool) -> Json:
    call_id, _, item_id = call.id.partition("|")
    item: Json = {
        "type": "function_call",
        "call_id": call_id,
        "name": call.name,
        "arguments": dump_json(call.arguments).decode(),
    }
    # The id ties the call to reasoning that only its own model gets back.
    if keeps_id and item_id:
        item["id"] = item_id
    return item


def _tool_result(message: ToolResultMessage, model: Model) -> Json:
    text = "\n".join(b.text for b in message.content if isinstance(b, TextContent))
    images = [block for block in message.content if isinstance(block, ImageContent)]
    text = truncate_bytes_utf8(text, output_limit_bytes(model))
    output: str | list[Json] = text if text.strip() else EMPTY_RESULT_TEXT
    if images:
        output = [*_visible([TextContent(text=text)]), *_visible(images)]
    call_id = message.tool_call_id.partition("|")[0]
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def output_limit_bytes(model: Model) -> int:
    """How much of a tool's output is sent."""
    share = int(model.context_window * OUTPUT_SHARE) * BYTES_PER_TOKEN
    return min(max(share, MIN_OUTPUT_BYTES), MAX_OUTPUT_BYTES)
