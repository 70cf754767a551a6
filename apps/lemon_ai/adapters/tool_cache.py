"""The serialised tool schemas of a run, which are the same in each of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from lemon_ai.text import dump_json
from lemon_ai.types import Tool

_SIZE = 32


class ToolCache:
    """The serialised `tools` array of the tuples seen last, by identity; one cache per adapter.

    A run passes one tuple again and again; the tuple is held, so its id cannot be reused.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, str], tuple[Sequence[Tool], orjson.Fragment]] = {}

    def serialise(
        self,
        tools: Sequence[Tool],
        convert: Callable[[Tool], Any],
        *,
        variant: str = "",
        last: Callable[[Any], Any] | None = None,
    ) -> orjson.Fragment:
        """The JSON of these tools, ready to be embedded. `last` changes the last row; calls whose
        `convert` or `last` differ must differ in `variant`."""
        key = (id(tools), variant)
        entry = self._entries.get(key)
        if entry is not None and entry[0] is tools:
            return entry[1]
        rows = [convert(tool) for tool in tools]
        if last is not None and rows:
            rows[-1] = last(rows[-1])
        fragment = orjson.Fragment(dump_json(rows))
        if isinstance(tools, tuple):  # a list may change under its identity
            if len(self._entries) >= _SIZE:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = (tools, fragment)
        return fragment
