"""The tool schemas of a run, frozen: what the model is shown is the code that runs.

A snapshot holds what is derived from the tools (the tuple that lemon_ai serialises once, the
fingerprint, the compiled validators), so a caller that runs the same tools again keeps it in a
`SchemaCache` and pays for none of it twice.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lemon_ai import Tool
from lemon_core.ids import now_ms
from lemon_core.util import canonical_json

if TYPE_CHECKING:
    from lemon_agent.arguments import Validator
    from lemon_agent.types import AgentTool


@dataclass(frozen=True, slots=True)
class ToolSchemaSnapshot:
    """`fingerprint` is of name, description and parameters, in order; `id` is unique. `chars` is
    what a model is shown of the tools, in characters."""

    id: str
    tools: tuple[Tool, ...]
    tool_names: tuple[str, ...]
    fingerprint: str
    created_at_ms: int
    chars: int
    validators: dict[str, Validator] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, tools: Sequence[AgentTool]) -> ToolSchemaSnapshot:
        """The snapshot of these tools; ValueError when two share a name."""
        names = tuple(tool.name for tool in tools)
        if len(set(names)) != len(names):
            raise ValueError(f"two tools share a name: {', '.join(sorted(names))}")
        shown = tuple(Tool(tool.name, tool.description, tool.parameters) for tool in tools)
        fingerprint = _fingerprint(shown)
        return cls(
            id=f"tool_schema_{fingerprint}_{secrets.token_hex(4)}",
            tools=shown,
            tool_names=names,
            fingerprint=fingerprint,
            created_at_ms=now_ms(),
            chars=sum(map(_chars, shown)),
        )


def _chars(tool: Tool) -> int:
    return len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters))


def _fingerprint(tools: Sequence[Tool]) -> str:
    rows = [[tool.name, tool.description, tool.parameters] for tool in tools]
    return hashlib.sha256(canonical_json(rows)).hexdigest()[:16]


# The parameters take part by identity: tools built anew for each run share their schema objects.
_Key = tuple[tuple[str, str, int], ...]


class SchemaCache:
    """Snapshots of recently used tool sets; own one per runtime."""

    def __init__(self, max_entries: int = 64) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[_Key, ToolSchemaSnapshot] = OrderedDict()

    def snapshot(self, tools: Sequence[AgentTool]) -> ToolSchemaSnapshot:
        """The snapshot of these tools, the same object when they were seen before."""
        key: _Key = tuple((tool.name, tool.description, id(tool.parameters)) for tool in tools)
        found = self._entries.get(key)
        if found is None:
            # The snapshot keeps the parameters alive, so an id in a key is never another object.
            found = self._entries[key] = ToolSchemaSnapshot.of(tools)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return found
