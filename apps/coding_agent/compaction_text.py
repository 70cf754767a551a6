"""A conversation as text: shortened for whoever summarises it, or told plainly without a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from lemon_agent import AgentMessage, SummaryMessage
from lemon_ai import (
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    get_tool_calls,
)

# Characters of one message of each kind: first try, and when that is too much.
FULL: Final = {"user": 4_000, "text": 2_000, "call": 500, "result": 500}
SHORT: Final = {"user": 1_000, "text": 500, "call": 200, "result": 200}
HEAD_SHARE: Final = 0.25
MAX_TOLD: Final = 20
MAX_TOLD_CHARS: Final = 300
MAX_FILES: Final = 40
_READING: Final = frozenset({"read"})
_CHANGING: Final = frozenset({"write", "edit", "hashline_edit"})


def transcript(messages: Sequence[AgentMessage], max_bytes: int) -> str:
    """The messages as text of at most `max_bytes` bytes of UTF-8.

    What is too long is cut within the messages first; then whole ones go from the middle: the
    beginning says what it is about, the end where it stands.
    """
    for limits in (FULL, SHORT):
        parts = [part for message in messages if (part := _shown(message, limits))]
        text = "\n\n".join(parts)
        if len(text.encode()) <= max_bytes:
            return text
    return _without_middle(parts, max_bytes)


def plain_summary(messages: Sequence[AgentMessage]) -> str:
    """What was asked and which files were touched, without a model; always the same for the same
    messages."""
    earlier = [m.content for m in messages[:1] if isinstance(m, SummaryMessage)]
    asked = [
        _cut(_user_text(message), MAX_TOLD_CHARS)
        for message in messages
        if isinstance(message, UserMessage) and not isinstance(message, SummaryMessage)
    ]
    lines = [_cut(str(text), FULL["user"]) for text in earlier]
    lines.append(f"{len(messages)} messages were removed; no model has summarised them.")
    if len(asked) > MAX_TOLD:
        lines.append(f"({len(asked) - MAX_TOLD} earlier requests are left out.)")
    lines += [f"The user wrote: {text}" for text in asked[-MAX_TOLD:] if text]
    return "\n".join(lines) + files_note(messages)


def files_note(messages: Sequence[AgentMessage]) -> str:
    """The lines that name the files which were read and changed; empty without any."""
    read, changed = file_facts(messages)
    lines = [
        f"{title}: {', '.join(paths)}"
        for title, paths in (("Files read", read), ("Files changed", changed))
        if paths
    ]
    return "\n\n" + "\n".join(lines) if lines else ""


def file_facts(messages: Iterable[AgentMessage]) -> tuple[list[str], list[str]]:
    """The files that were read, and those that were changed, each once, the last ones."""
    read: dict[str, None] = {}
    changed: dict[str, None] = {}
    for message in messages:
        if not isinstance(message, AssistantMessage):
            continue
        for call in get_tool_calls(message):
            path = call.arguments.get("path")
            if isinstance(path, str) and path:
                if call.name in _CHANGING:
                    changed[path] = None
                elif call.name in _READING:
                    read[path] = None
    return list(read)[-MAX_FILES:], list(changed)[-MAX_FILES:]


def _shown(message: AgentMessage, limits: dict[str, int]) -> str:
    match message:
        case SummaryMessage(content=content):
            return f"[Earlier summary]\n{_cut(str(content), 2 * limits['user'])}"
        case UserMessage():
            return f"[User]\n{_cut(_user_text(message), limits['user'])}"
        case AssistantMessage(content=blocks):
            return "\n".join(filter(None, (_block(block, limits) for block in blocks)))
        case ToolResultMessage(tool_name=name, content=blocks):
            text = "\n".join(b.text for b in blocks if isinstance(b, TextContent))
            failed = ", failed" if message.is_error else ""
            return f"[Result of {name}{failed}]\n{_cut(text, limits['result'])}"
        case _:
            return ""


def _block(block: object, limits: dict[str, int]) -> str:
    match block:
        case TextContent(text=text) if text.strip():
            return f"[Agent]\n{_cut(text, limits['text'])}"
        case ToolCall(name=name, arguments=arguments):
            given = json.dumps(arguments, ensure_ascii=False, default=str)
            return f"[Agent calls {name}] {_cut(given, limits['call'])}"
        case _:  # what it thought is no fact of the conversation
            return ""


def _user_text(message: UserMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(
        block.text if isinstance(block, TextContent) else "[image]" for block in message.content
    )


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]} […] {text[-tail:]}"


def _without_middle(parts: Sequence[str], max_bytes: int) -> str:
    """As many of the first as fit a quarter, then as many of the last as fit the rest."""
    head: list[str] = []
    room = int(max_bytes * HEAD_SHARE)
    for part in parts:
        room -= len(part.encode()) + 2
        if room < 0:
            break
        head.append(part)
    note = "[… left out …]"
    room = max_bytes - sum(len(part.encode()) + 2 for part in head) - len(note.encode()) - 2
    tail: list[str] = []
    for part in reversed(parts[len(head) :]):
        room -= len(part.encode()) + 2
        if room < 0:
            break
        tail.append(part)
    return "\n\n".join([*head, note, *reversed(tail)])
