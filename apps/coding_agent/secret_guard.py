"""Keeps the values of secrets out of what a model reads, and their marks out of what it writes.

A tool that shows a file or an output with a known key shows the key's mark instead; that is what
the transcript keeps and what a later run reads again. A call that is to write such a mark somewhere
is refused: a file must not get the mark for the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Protocol

from lemon_agent import AgentTool, AgentToolResult, ToolCallContext, ToolError
from lemon_ai import TextContent
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.logs import get_logger
from lemon_core.secret_marks import SecretMarks, marked_names
from lemon_core.secret_record import SecretInfo

log = get_logger(__name__)

FRESH_MS: Final = 5_000


class StoredSecrets(Protocol):
    """What is needed of core's `Secrets`."""

    async def list(self) -> tuple[SecretInfo, ...]: ...
    async def get(self, name: str, *, count_use: bool = True) -> str: ...


class KnownSecrets:
    """The secrets of a runtime: those that `given` tells, and those of the store.

    They are looked at again after five seconds at the earliest; what the store holds is decrypted
    only when it is new.
    """

    def __init__(
        self, given: Callable[[], Mapping[str, str]], stored: StoredSecrets, clock: Clock
    ) -> None:
        self._given, self._stored, self._clock = given, stored, clock
        self._values: dict[str, tuple[int, str]] = {}
        self._seen: tuple[Mapping[str, str], SecretMarks] | None = None
        self._fresh_until_ms = 0.0

    async def marks(self) -> SecretMarks:
        """The marks of all of them; the same object while nothing has changed."""
        now = self._clock.monotonic_ms()
        if self._seen is not None and now < self._fresh_until_ms:
            return self._seen[1]
        await self._look()
        values = {name: value for name, (_, value) in self._values.items()} | dict(self._given())
        if self._seen is None or self._seen[0] != values:
            self._seen = (values, SecretMarks(values))
        self._fresh_until_ms = now + FRESH_MS
        return self._seen[1]

    async def _look(self) -> None:
        try:
            infos = await self._stored.list()
        except LemonError:
            log.debug("secret_guard.store_unreadable")
            return
        known, self._values = self._values, {}
        for info in infos:
            before = known.get(info.name)
            if before is not None and before[0] == info.updated_at:
                self._values[info.name] = before
                continue
            try:
                value = await self._stored.get(info.name, count_use=False)
            except LemonError:  # without the master key nobody reads it, and neither does a tool
                continue
            self._values[info.name] = (info.updated_at, value)


def secretive(tool: AgentTool, secrets: KnownSecrets, *, writes: bool) -> AgentTool:
    """The tool, whose results show marks for secrets; one that `writes` takes no marks."""

    async def execute(call: ToolCallContext) -> AgentToolResult:
        if writes and (names := _marks_in(call.params)):
            raise ToolError(_refusal(names))
        marks = await secrets.marks()
        if not marks:
            return await tool.execute(call)

        def on_update(partial: AgentToolResult) -> None:
            call.on_update(_masked(partial, marks))

        try:
            result = await tool.execute(replace(call, on_update=on_update))
        except ToolError as exc:
            text = marks.masked(str(exc))
            if text == str(exc):
                raise
            raise ToolError(text) from None
        return _masked(result, marks)

    return tool.executing(execute)


def _masked(result: AgentToolResult, marks: SecretMarks) -> AgentToolResult:
    given: object = result  # a foreign tool may break its promise; the loop has a word for it
    if not isinstance(given, AgentToolResult):
        return result
    content = [
        TextContent(text=marks.masked(block.text)) if isinstance(block, TextContent) else block
        for block in result.content
    ]
    details = marks.masked_value(result.details)
    if content == list(result.content) and details is result.details:
        return result
    return replace(result, content=tuple(content), details=details)


def _marks_in(value: object) -> list[str]:
    names = [name for text in _texts(value) for name in marked_names(text)]
    return list(dict.fromkeys(names))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _refusal(names: list[str]) -> str:
    told = ", ".join(names)
    return (
        f"This holds the mark of a secret ({told}) and not its value, so it was not run. Use the "
        f"secret by its name: the variable ${names[0]} in a command, or the name where a program "
        "or a configuration takes one. Leave the part of a file that holds it as it is."
    )
