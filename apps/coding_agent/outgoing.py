"""What is sent of earlier answers: long arguments and long thinking in parts.

The conversation keeps them as they were made. What is sent in place of a message is made once per
run, so that every model call is sent the same beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from coding_agent.guardrails import kept_file
from lemon_agent import AgentMessage
from lemon_ai import AssistantMessage, ThinkingContent, ToolCall

MAX_ARGUMENT_BYTES: Final = 12_000
EXCERPT_BYTES: Final = 2_000
MAX_THINKING_BYTES: Final = 65_536

Block = Any


class Outgoing:
    """The limits of one run; whole arguments are private files in `folder`, named by their hash.

    `max_thinking_bytes` 0 sends no thinking. Thinking that its provider has signed, or hidden, is
    sent as it is: cut, it would be refused.
    """

    def __init__(self, folder: Path, *, max_thinking_bytes: int = MAX_THINKING_BYTES) -> None:
        self._folder, self._max_thinking = folder, max_thinking_bytes
        # By identity; the message is held with it, because a number may be used again.
        self._made: dict[int, tuple[AgentMessage, AgentMessage]] = {}

    async def limited(self, messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        """The messages as they are sent; the very same where nothing is too long."""
        new = [message for message in messages if id(message) not in self._made]
        large = [message for message in new if self._is_large(message)]
        if large:
            made = await anyio.to_thread.run_sync(lambda: list(map(self._shrunk, large)))
            self._made |= {id(old): (old, fresh) for old, fresh in zip(large, made, strict=True)}
        self._made |= {id(one): (one, one) for one in new if id(one) not in self._made}
        sent = [self._made[id(message)][1] for message in messages]
        return messages if all(map(_is, sent, messages)) else sent

    def _is_large(self, message: AgentMessage) -> bool:
        if not isinstance(message, AssistantMessage):
            return False
        return any(self._is_long(block) for block in message.content)

    def _is_long(self, block: Block) -> bool:
        if isinstance(block, ToolCall):
            return any(map(_is_long_text, block.arguments.values()))
        if not isinstance(block, ThinkingContent):
            return False
        if block.thinking_signature or block.redacted_data:
            return False
        return len(block.thinking.encode(errors="replace")) > self._max_thinking

    def _shrunk(self, message: AgentMessage) -> AgentMessage:
        assert isinstance(message, AssistantMessage)
        blocks: list[Block] = []
        for block in message.content:
            if not self._is_long(block):
                blocks.append(block)
            elif isinstance(block, ToolCall):
                short = {name: self._argument(value) for name, value in block.arguments.items()}
                blocks.append(block.model_copy(update={"arguments": short}))
            elif isinstance(block, ThinkingContent) and self._max_thinking:
                head_tail = _excerpt(block.thinking, self._max_thinking)
                blocks.append(block.model_copy(update={"thinking": head_tail}))
        return message.model_copy(update={"content": blocks})

    def _argument(self, value: object) -> object:
        if not _is_long_text(value):
            return value
        assert isinstance(value, str)
        data = value.encode(errors="replace")
        digest, path = kept_file(self._folder, data, "txt")
        short: Mapping[str, object] = {
            "_truncated": True,
            "bytes": len(data),
            "sha256": digest,
            "spill_path": None if path is None else str(path),
            "head_tail_excerpt": _excerpt(value, EXCERPT_BYTES),
        }
        return short


def _is(one: object, other: object) -> bool:
    return one is other


def _is_long_text(value: object) -> bool:
    # Four bytes are the most that a character takes: most values need not be encoded.
    return (
        isinstance(value, str)
        and len(value) > MAX_ARGUMENT_BYTES // 4
        and len(value.encode(errors="replace")) > MAX_ARGUMENT_BYTES
    )


def _excerpt(text: str, size: int) -> str:
    data = text.encode(errors="replace")
    head = data[: size // 2].decode(errors="ignore")
    tail = data[-(size // 2) :].decode(errors="ignore")
    return f"{head}\n[… {len(data) - size} bytes left out …]\n{tail}"
