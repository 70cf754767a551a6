"""The body of `streamGenerateContent`, which AI Studio and Vertex share. Key order is fixed: equal
input, equal bytes."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lemon_ai.adapters.base import AdapterRequest
from lemon_ai.adapters.google_schema import gemini_schema
from lemon_ai.adapters.told_calls import result_text, told_call, told_result
from lemon_ai.adapters.tool_cache import ToolCache
from lemon_ai.compat import Dialect, dialect_of
from lemon_ai.text import dump_json
from lemon_ai.thinking import gemini_thinking
from lemon_ai.transform import EMPTY_RESULT_TEXT, plain_id, transform_messages
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

VERTEX_API = "google_vertex"
IMAGES_BELOW_TEXT = "(see attached image)"
# Of what these models' ids begin with, the calls always have ids.
_WITH_IDS = ("claude-", "gpt-oss-")
_MADE_UP_ID = re.compile(r".*_\d{13}_\d+(?:_\d+)?", re.DOTALL)

Json = dict[str, Any]


def made_up_id(name: str, now_ms: int, number: int) -> str:
    """The id of a call to which the service gave none."""
    return f"{name}_{now_ms}_{number}"


def build_body(request: AdapterRequest, tools: ToolCache) -> bytes | None:
    """The request body, or None when no message is left to send."""
    model, context = request.model, request.context
    dialect = dialect_of(model, request.base_url)
    history = transform_messages(context.messages, model, plain_id)
    contents = list(_Converter(model, dialect).contents(history))
    if not contents:
        return None
    body: Json = {}
    if context.system_prompt and context.system_prompt.strip():
        body["systemInstruction"] = {"parts": [{"text": context.system_prompt}]}
    if context.tools and model.tools:
        declarations = tools.serialise(context.tools, _declaration)
        body["tools"] = [{"functionDeclarations": declarations}]
        if request.options.tool_choice is not None:
            config = _function_calling(request.options.tool_choice)
            body["toolConfig"] = {"functionCallingConfig": config}
    if config := _generation_config(request, dialect):
        body["generationConfig"] = config
    body["contents"] = contents
    return dump_json(body)


def _generation_config(request: AdapterRequest, dialect: Dialect) -> Json:
    model, options = request.model, request.options
    config: Json = {}
    if options.temperature is not None and model.sampling != "never":
        config["temperature"] = options.temperature
    if options.max_tokens is not None:
        config["maxOutputTokens"] = options.max_tokens
    if thinking := gemini_thinking(model, dialect, options):
        config["thinkingConfig"] = thinking
    return config


def _declaration(tool: Tool) -> Json:
    declaration: Json = {"name": tool.name, "description": tool.description}
    parameters = gemini_schema(tool.parameters)
    return declaration if parameters is None else {**declaration, "parameters": parameters}


def _function_calling(choice: str) -> Json:
    if choice in ("auto", "any", "none"):
        return {"mode": choice.upper()}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


# -- messages ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Step:
    """How the calls of one answer, and their results, are sent.

    `told`: in plain words, because the service would refuse the calls without their signature.
    `ids`: the ids that go along.
    """

    told: bool = False
    ids: frozenset[str] = frozenset()


class _Converter:
    """Turns a history into `contents`."""

    def __init__(self, model: Model, dialect: Dialect) -> None:
        self._model = model
        self._dialect = dialect

    def contents(self, history: Sequence[Message]) -> Iterator[Json]:
        """One content per message; the results of one answer share theirs."""
        step = _Step()
        results: list[ToolResultMessage] = []
        for message in history:
            if isinstance(message, ToolResultMessage):
                results.append(message)
                continue
            yield from self._results(results, step)
            results = []
            if isinstance(message, UserMessage):
                yield {"role": "user", "parts": list(_user_parts(message))}
            else:
                step = self._step(message)
                parts = self._answer_parts(message.content, step)
                yield {"role": "model", "parts": list(parts)}
        yield from self._results(results, step)

    def _step(self, message: AssistantMessage) -> _Step:
        calls = [block for block in message.content if isinstance(block, ToolCall)]
        if not calls:
            return _Step()
        signed = valid_signature(calls[0].thought_signature) is not None
        return _Step(
            told=self._dialect.requires_thought_signatures and not signed,
            ids=frozenset(call.id for call in calls if self._sends_id(message, call)),
        )

    def _sends_id(self, message: AssistantMessage, call: ToolCall) -> bool:
        """Whether the service gave the id, or takes any; Vertex takes none for Gemini."""
        model = self._model
        if model.id.startswith(_WITH_IDS):
            return True
        given = (message.provider, message.api) == (model.provider, model.api)
        return model.api != VERTEX_API and given and _MADE_UP_ID.fullmatch(call.id) is None

    def _answer_parts(self, blocks: Sequence[AssistantContent], step: _Step) -> Iterator[Json]:
        for block in blocks:
            match block:
                case TextContent():
                    if block.text.strip():
                        yield _signed({"text": block.text}, block.text_signature)
                case ThinkingContent():
                    if block.thinking.strip():
                        thought = {"text": block.thinking, "thought": True}
                        yield _signed(thought, block.thinking_signature)
                case ToolCall():
                    yield {"text": told_call(block)} if step.told else _call_part(block, step.ids)

    def _results(self, results: Sequence[ToolResultMessage], step: _Step) -> Iterator[Json]:
        if not results:
            return
        if step.told:
            texts: list[Json] = [{"text": told_result(result)} for result in results]
            yield {"role": "user", "parts": [*texts, *_each(results, _image_parts)]}
            return
        nested = self._dialect.supports_images_in_results
        yield {"role": "user", "parts": [_result_part(r, step.ids, nested) for r in results]}
        if images := [] if nested else list(_each(results, _image_parts)):
            yield {"role": "user", "parts": images}


def valid_signature(signature: str | None) -> str | None:
    """The signature when it is one: the service refuses a request over anything but base64."""
    if not signature:
        return None
    try:
        b64decode(signature, validate=True)
    except binascii.Error:
        return None
    return signature


def _signed(part: Json, signature: str | None) -> Json:
    valid = valid_signature(signature)
    return part if valid is None else {**part, "thoughtSignature": valid}


def _call_part(call: ToolCall, ids: frozenset[str]) -> Json:
    function: Json = {"id": call.id} if call.id in ids else {}
    function |= {"name": call.name, "args": call.arguments}
    return _signed({"functionCall": function}, call.thought_signature)


def _result_part(result: ToolResultMessage, ids: frozenset[str], nested: bool) -> Json:
    images = list(_image_parts(result))
    text = result_text(result) or (IMAGES_BELOW_TEXT if images else EMPTY_RESULT_TEXT)
    response: Json = {"id": result.tool_call_id} if result.tool_call_id in ids else {}
    response["name"] = result.tool_name
    response["response"] = {"error" if result.is_error else "output": text}
    if nested and images:
        response["parts"] = images
    return {"functionResponse": response}


def _user_parts(message: UserMessage) -> Iterator[Json]:
    if isinstance(message.content, str):
        yield {"text": message.content}
        return
    for block in message.content:
        if isinstance(block, ImageContent):
            yield _image(block)
        elif block.text.strip():
            yield {"text": block.text}


def _image_parts(message: ToolResultMessage) -> Iterator[Json]:
    for block in message.content:
        if isinstance(block, ImageContent):
            yield _image(block)


def _image(block: ImageContent) -> Json:
    return {"inlineData": {"mimeType": block.mime_type, "data": block.data}}


def _each(
    results: Sequence[ToolResultMessage], parts: Callable[[ToolResultMessage], Iterator[Json]]
) -> Iterator[Json]:
    for result in results:
        yield from parts(result)
