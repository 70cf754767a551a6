"""What a tool's result may be before a model reads it: bounded in size, and marked when foreign.

A result that is too large is cut when it is made, not when it is sent: the conversation, its file
and every count of its size then hold what the model is shown. Text from outside is marked on its
way to the model alone; the transcript keeps it as it came.
"""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio.to_thread

from coding_agent.workspace import make_private_folder
from lemon_agent import AgentMessage, AgentTool, AgentToolResult, ToolCallContext
from lemon_agent.external_content import BEGIN, END, WARNING, sanitize, wrap_external_content
from lemon_ai import ImageContent, TextContent, ToolResultMessage
from lemon_core.logs import get_logger

log = get_logger(__name__)

MAX_RESULT_BYTES: Final = 60_000
MAX_RESULT_IMAGES: Final = 1
KEPT_BYTES: Final = 40_000
_MARK: Final = re.compile(f"{re.escape(BEGIN)}|{re.escape(END)}")


def bounded(tool: AgentTool, folder: Path) -> AgentTool:
    """The tool, of whose results at most 60,000 bytes of text and one image are shown; the rest is
    then in private files in `folder`, named by their hash."""

    async def execute(call: ToolCallContext) -> AgentToolResult:
        result = await tool.execute(call)
        given: object = result  # a foreign tool may break its promise; the loop has a word for it
        if not isinstance(given, AgentToolResult):
            return result
        images = [block for block in given.content if isinstance(block, ImageContent)]
        is_long = len(given.text.encode(errors="replace")) > MAX_RESULT_BYTES
        if not is_long and len(images) <= MAX_RESULT_IMAGES:
            return given
        return await anyio.to_thread.run_sync(_bounded, tool.name, given, is_long, folder)

    return tool.executing(execute)


def kept_file(folder: Path, data: bytes, suffix: str) -> tuple[str, Path | None]:
    """The hash of `data`, and the private file in `folder` that is named by it and holds it; None
    when it could not be written. Blocking."""
    digest = hashlib.sha256(data).hexdigest()
    path = folder / f"{digest}.{suffix}"
    return digest, path if _saved(path, data) else None


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
        if isinstance(block, TextContent) and not _is_marked(block.text, message.details)
        else block
        for block in message.content
    ]
    return message.model_copy(update={"content": blocks})


def _is_marked(text: str, details: object) -> bool:
    """Whether what is foreign in `text` stands between marks already.

    Marks alone say nothing: text from outside may bring its own, and what is cut or taken apart has
    lost some. It is one whole block, or its tool says that it has wrapped the foreign parts.
    """
    marks = _MARK.findall(text)
    if not marks or marks != [BEGIN, END] * (len(marks) // 2):
        return False
    if _says_wrapped(details):
        return True
    block = text.removeprefix(WARNING).lstrip()
    inner = block.removeprefix(BEGIN).removesuffix(END)
    return block == f"{BEGIN}{inner}{END}" and sanitize(inner) == inner


def _says_wrapped(details: object) -> bool:
    if not isinstance(details, Mapping):
        return False
    nested = details.get("trustMetadata")
    if isinstance(nested, Mapping):
        return nested.get("wrappingApplied") is True
    return details.get("wrapping_applied") is True


def _bounded(tool: str, result: AgentToolResult, is_long: bool, folder: Path) -> AgentToolResult:
    texts = [block for block in result.content if isinstance(block, TextContent)]
    images = [block for block in result.content if isinstance(block, ImageContent)]
    if is_long:
        texts = [TextContent(text=_cut(tool, result.text, folder))]
    spilled = (_placeholder(image, folder) for image in images[MAX_RESULT_IMAGES:])
    return replace(result, content=(*texts, *images[:MAX_RESULT_IMAGES], *spilled))


def _cut(tool: str, text: str, folder: Path) -> str:
    data = text.encode(errors="replace")
    digest, path = kept_file(folder, data, "txt")
    place = " (the rest could not be saved)" if path is None else f" spill_path={path}"
    head = data[: KEPT_BYTES // 2].decode(errors="ignore")
    tail = data[-KEPT_BYTES // 2 :].decode(errors="ignore")
    line = f"[tool_result truncated] tool={tool} original_bytes={len(data)} sha256={digest}{place}"
    return f"{line}\n{head}\n[… {len(data) - KEPT_BYTES} bytes left out …]\n{tail}"


def _placeholder(image: ImageContent, folder: Path) -> TextContent:
    try:
        data = b64decode(image.data)
    except ValueError:
        return TextContent(text="[image left out: its data cannot be read]")
    _, path = kept_file(folder, data, image.mime_type.rpartition("/")[2])
    place = "could not be saved" if path is None else f"saved to: {path}"
    return TextContent(text=f"[image left out: {image.mime_type}, {len(data)} bytes, {place}]")


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
