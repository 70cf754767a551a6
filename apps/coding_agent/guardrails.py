"""What a tool's result may be before a model reads it: bounded in size, and marked when foreign.

A result that is too large is cut when it is made, not when it is sent: the conversation, its file
and every count of its size then hold what the model is shown. Text from outside is marked on its
way to the model alone; the transcript keeps it as it came.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.workspace import make_private_folder
from lemon_agent import AgentMessage, AgentTool, AgentToolResult, ToolCallContext
from lemon_agent.external_content import BEGIN, wrap_external_content
from lemon_ai import ImageContent, TextContent, ToolResultMessage
from lemon_core.logs import get_logger

log = get_logger(__name__)

MAX_RESULT_BYTES: Final = 60_000
KEPT_BYTES: Final = 40_000


def bounded(tool: AgentTool, folder: Path) -> AgentTool:
    """The tool, of whose results at most 60,000 bytes of text are shown; the whole text is then a
    private file in `folder`, named by its hash."""

    async def execute(call: ToolCallContext) -> AgentToolResult:
        result = await tool.execute(call)
        given: object = result  # a foreign tool may break its promise; the loop has a word for it
        text = given.text if isinstance(given, AgentToolResult) else ""
        if len(text.encode(errors="replace")) <= MAX_RESULT_BYTES:
            return result
        images = [block for block in result.content if isinstance(block, ImageContent)]
        shown = await anyio.to_thread.run_sync(_cut, tool.name, text, folder)
        return replace(result, content=(TextContent(text=shown), *images))

    return replace(tool, execute=execute)


def marked(messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
    """The messages, with the text of untrusted results between markers that say so."""
    if not any(map(_is_foreign, messages)):
        return messages
    return [_marked(message) if _is_foreign(message) else message for message in messages]


def _is_foreign(message: AgentMessage) -> bool:
    return isinstance(message, ToolResultMessage) and message.trust == "untrusted"


def _marked(message: AgentMessage) -> AgentMessage:
    assert isinstance(message, ToolResultMessage)
    blocks = [
        TextContent(text=wrap_external_content(block.text, "api"))
        if isinstance(block, TextContent) and BEGIN not in block.text
        else block
        for block in message.content
    ]
    return message.model_copy(update={"content": blocks})


def _cut(tool: str, text: str, folder: Path) -> str:
    data = text.encode(errors="replace")
    digest = hashlib.sha256(data).hexdigest()
    path = folder / f"{digest}.txt"
    place = f" spill_path={path}" if _saved(path, data) else " (the rest could not be saved)"
    head = data[: KEPT_BYTES // 2].decode(errors="ignore")
    tail = data[-KEPT_BYTES // 2 :].decode(errors="ignore")
    line = f"[tool_result truncated] tool={tool} original_bytes={len(data)} sha256={digest}{place}"
    return f"{line}\n{head}\n[… {len(data) - KEPT_BYTES} bytes left out …]\n{tail}"


def _saved(path: Path, data: bytes) -> bool:
    try:
        make_private_folder(path.parent)
        if path.is_file():  # named by what it holds
            return True
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
    except OSError as exc:
        log.warning("guardrails.spill_failed", path=str(path), reason=exc.strerror)
        return False
    return True
