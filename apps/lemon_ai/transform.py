"""A stored conversation made fit for one model, before any adapter converts it.

Answers that failed are left out, foreign signatures go, tool calls and results are paired, ids
obey the target, images go where the model cannot see, and what is empty then is not sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

from lemon_ai.types import (
    AssistantContent,
    AssistantMessage,
    ImageContent,
    Message,
    Model,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

MISSING_RESULT_TEXT = "No result provided"
EMPTY_RESULT_TEXT = "(empty result)"
IdRule = Callable[[str], str]
MAX_ID_LENGTH = 64
_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


def openai_chat_id(call_id: str) -> str:
    """The part before `|` (the rest belongs to another wire API), at most 40 characters."""
    return call_id.split("|", 1)[0][:40]


def mistral_id(call_id: str) -> str:
    """Exactly nine alphanumeric characters."""
    plain = _NOT_ALPHANUMERIC.sub("", call_id)
    return plain if len(plain) == 9 else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def plain_id(call_id: str) -> str:
    """Letters, digits, `_` and `-`, at most 64: Anthropic, Bedrock, the call half of Responses."""
    return _NOT_PLAIN.sub("_", call_id.split("|", 1)[0])[:MAX_ID_LENGTH]


def responses_item_id(call_id: str) -> str:
    """The item half of a Responses id, which begins with `fc_`; empty when there is none."""
    item = _NOT_PLAIN.sub("_", call_id.partition("|")[2])
    if item and not item.startswith("fc_"):
        item = f"fc_{item}"
    return item[:MAX_ID_LENGTH]


def transform_messages(
    messages: Iterable[Message], model: Model, id_rule: IdRule, item_rule: IdRule | None = None
) -> list[Message]:
    """The messages to send, oldest first.

    `id_rule` makes an id that the target takes. With `item_rule` ids have the form `call|item`:
    the call half is unique by `id_rule`, and `item_rule` gives the item half.
    """
    ids = _Ids(id_rule, item_rule)
    kept = [m for m in messages if not _failed(m)]
    return _drop_empty(
        _without_images(m, model) for m in _pair(_adapt(m, model, ids) for m in kept)
    )


def is_same_model(message: AssistantMessage, model: Model) -> bool:
    """Whether this very model gave the answer; only to it its signatures mean something."""
    source = (message.provider, message.api, message.model)
    return source == (model.provider, model.api, model.id)


def keep_newest(history: list[Message], limit: int | None) -> list[Message]:
    """The last `limit` messages, without results whose calls are cut off. None: all."""
    if limit is None or len(history) <= limit:
        return history
    kept = history[-limit:]
    first = next((i for i, m in enumerate(kept) if not isinstance(m, ToolResultMessage)), len(kept))
    return kept[first:]


def without_thinking(history: Iterable[Message]) -> list[Message]:
    """The messages without the thinking in them. What holds nothing else is gone already."""
    return [
        message.model_copy(
            update={"content": [b for b in message.content if not isinstance(b, ThinkingContent)]}
        )
        if isinstance(message, AssistantMessage)
        else message
        for message in history
    ]


def _failed(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason in ("error", "aborted")


class _Ids:
    """One injective map of tool-call ids for calls and results alike."""

    def __init__(self, rule: IdRule, item_rule: IdRule | None) -> None:
        self.rule = rule
        self._item_rule = item_rule
        self._by_source: dict[str, str] = {}
        self._taken: set[str] = set()

    def map(self, source: str) -> str:
        target = self._by_source.get(source)
        if target is None:
            target = self.rule(source)
            suffix = source
            while not target or target in self._taken:
                suffix = hashlib.sha256(suffix.encode()).hexdigest()
                target = self.rule(f"{self.rule(source)[:24]}_{suffix[:8]}")
            self._taken.add(target)
            if self._item_rule is not None and (item := self._item_rule(source)):
                target = f"{target}|{item}"
            self._by_source[source] = target
        return target


def _adapt(message: Message, model: Model, ids: _Ids) -> Message:
    match message:
        case AssistantMessage():
            same = is_same_model(message, model)
            blocks = [_block(block, same, ids) for block in message.content]
            return message.model_copy(update={"content": [b for b in blocks if b is not None]})
        case ToolResultMessage():
            return message.model_copy(update={"tool_call_id": ids.map(message.tool_call_id)})
        case UserMessage():
            return message


def _block(block: AssistantContent, same_model: bool, ids: _Ids) -> AssistantContent | None:
    match block:
        case ToolCall():
            signature = block.thought_signature if same_model else None
            return block.model_copy(
                update={"id": ids.map(block.id), "thought_signature": signature}
            )
        case TextContent():
            return block if same_model or not block.text_signature else TextContent(text=block.text)
        case ThinkingContent():
            if same_model:
                return block
            # Only its own model can be given its thinking back; another reads it as text.
            return TextContent(text=block.thinking) if block.thinking.strip() else None


def _pair(messages: Iterable[Message]) -> list[Message]:
    """Each call gets exactly one result right behind it; a result without its call goes."""
    out: list[Message] = []
    open_calls: dict[str, ToolCall] = {}
    for message in messages:
        if isinstance(message, ToolResultMessage):
            if open_calls.pop(message.tool_call_id, None) is not None:
                out.append(message)
            continue
        out.extend(_missing(open_calls.values()))
        open_calls.clear()
        if isinstance(message, AssistantMessage):
            message, open_calls = _unique_calls(message)
        out.append(message)
    out.extend(_missing(open_calls.values()))
    return out


def _unique_calls(message: AssistantMessage) -> tuple[AssistantMessage, dict[str, ToolCall]]:
    calls: dict[str, ToolCall] = {}
    content: list[AssistantContent] = []
    for block in message.content:
        if isinstance(block, ToolCall):
            if block.id in calls:
                continue  # a stored duplicate: one result can answer only one of them
            calls[block.id] = block
        content.append(block)
    if len(content) != len(message.content):
        message = message.model_copy(update={"content": content})
    return message, calls


def _missing(calls: Iterable[ToolCall]) -> list[ToolResultMessage]:
    return [
        ToolResultMessage(
            tool_call_id=call.id,
            tool_name=call.name,
            content=[TextContent(text=MISSING_RESULT_TEXT)],
            is_error=True,
        )
        for call in calls
    ]


def _without_images(message: Message, model: Model) -> Message:
    if "image" in model.input or isinstance(message, AssistantMessage):
        return message
    if isinstance(message.content, str):
        return message
    kept = [block for block in message.content if not isinstance(block, ImageContent)]
    if len(kept) == len(message.content):
        return message
    return message.model_copy(update={"content": kept})


def _drop_empty(messages: Iterable[Message]) -> list[Message]:
    return [m for m in messages if isinstance(m, ToolResultMessage) or not _is_empty(m.content)]


def _is_empty(content: str | Sequence[object]) -> bool:
    """Whether nothing would be sent: no text but blanks, no call, no image.

    Thinking alone is nothing either: every service refuses an answer without text or calls.
    """
    if isinstance(content, str):
        return not content.strip()
    return not any(
        isinstance(block, ToolCall | ImageContent)
        or (isinstance(block, TextContent) and block.text.strip())
        for block in content
    )
