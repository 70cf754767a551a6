"""The output of one command or script: an excerpt for the model, all of it for a file, progress."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import anyio

from coding_agent.tools.output import Excerpt, SpillFile
from lemon_agent import AgentToolResult, ToolCallContext

UPDATE_BYTES: Final = 4_000
UPDATE_INTERVAL_S: Final = 0.1

# ECMA-48 sequences (colour, cursor, titles, character sets), then the other control characters.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/][0-~]|[0-OQ-WYZ\\`-~])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class LiveOutput:
    """Takes output as it comes; `report` shows the last lines of it to whoever watches the call."""

    def __init__(
        self, call: ToolCallContext, spill: SpillFile, excerpt: Excerpt | None = None
    ) -> None:
        self._call = call
        self._fresh = anyio.Event()
        self.excerpt = excerpt or Excerpt()
        self.spill = spill

    async def take(self, chunk: bytes) -> None:
        """Add output."""
        self.excerpt.take(chunk)
        self._fresh.set()
        await self.spill.write(chunk)

    async def report(self) -> None:
        """Show the last lines to whoever watches, so often that the size of the output is moot."""
        while True:
            await self._fresh.wait()
            self._fresh = anyio.Event()
            text = self.last_lines()
            self._call.on_update(AgentToolResult.of_text(text, details={"output": text}))
            await anyio.sleep(UPDATE_INTERVAL_S)

    def last_lines(self) -> str:
        """The end of what there is so far, as plain text."""
        return clean(self.excerpt.tail.last(UPDATE_BYTES)).rstrip("\n")

    async def saved(self) -> Path | None:
        """The file with all of it, when not all is shown."""
        return await self.spill.save() if self.excerpt.is_cut else None


def shown_excerpt(excerpt: Excerpt, saved: Path | None) -> str:
    """Output as the model is shown it: all of it, or head, tail, size and where the rest is."""
    head, tail = (clean(part).strip("\n") for part in excerpt.parts())
    if not excerpt.is_cut:
        return head
    where = "" if saved is None else f" Full output saved to: {saved}"
    return f"{head}\n[… cut: {excerpt.size} bytes in all.{where}]\n{tail}"


def clean(output: bytes) -> str:
    """Output as plain text: no escape sequences, no control characters, no carriage returns."""
    return _CONTROL.sub("", _ESCAPES.sub("", output.decode(errors="replace")))
