"""Too many tools for the prompt: those of extensions and the like are then found by a search.

Below the budget nothing changes. Above it the tools that can be spared leave the list, and two
small ones stand for them: `tool_search` finds and describes, `tool_invoke` calls. What a policy
denies was never in the list, so it is not found either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from lemon_agent import AgentTool, AgentToolResult, ToolCallContext, ToolError
from lemon_agent.arguments import Validator, coerce_arguments
from lemon_agent.context import tokens_of
from lemon_core.config.tools import Disclosure
from lemon_core.tool_policy import ToolPolicy

SEARCH: Final = "tool_search"
INVOKE: Final = "tool_invoke"
BRIDGES: Final = frozenset({SEARCH, INVOKE})
MAX_LIMIT: Final = 20
MAX_SUGGESTED: Final = 5
MAX_CACHED: Final = 1_024

_SEARCH_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "Words, or select:name,name for whole schemas.",
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    },
    "required": ["query"],
    "additionalProperties": False,
}
_INVOKE_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "As tool_search gives it."},
        "args": {"type": "object", "description": "The tool's own arguments."},
    },
    "required": ["name", "args"],
    "additionalProperties": False,
}


class SchemaSizes:
    """What schemas take of the prompt, in tokens; one per runtime."""

    def __init__(self) -> None:
        # The parameters are kept with their size, so an id in a key is never another object.
        self._known: dict[tuple[str, int], tuple[object, int]] = {}

    def of(self, tool: AgentTool) -> int:
        """About how many tokens the tool's definition has."""
        key = (tool.name, id(tool.parameters))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            chars = len(tool.name) + len(json.dumps(tool.parameters))
            known = self._known[key] = (tool.parameters, chars)
        return tokens_of(known[1] + len(tool.description))


def disclosed(
    tools: Sequence[AgentTool],
    deferrable: Collection[str],
    policy: ToolPolicy,
    settings: Disclosure,
    sizes: SchemaSizes,
) -> list[AgentTool]:
    """The tools that the model is shown: all of `tools`, or without the `deferrable` ones and with
    the two that stand for them when all together are above the budget."""
    hidden = {tool.name: tool for tool in tools if tool.name in deferrable}
    if not settings.enabled or not hidden:
        return list(tools)
    if sum(map(sizes.of, tools)) <= settings.budget_tokens:
        return list(tools)
    shown = [tool for tool in tools if tool.name not in hidden]
    names = {*policy.deny, *policy.blocked_tools}
    # They give no more than the policy permits by itself, so only a plain no keeps them away.
    return [*shown, *(each for each in _bridges(hidden, settings) if each.name not in names)]


def _bridges(hidden: Mapping[str, AgentTool], settings: Disclosure) -> list[AgentTool]:
    catalogue = _Catalogue(hidden, settings)
    return [
        AgentTool(
            name=SEARCH,
            description=f"Find more tools.{catalogue.text()}",
            parameters=_SEARCH_PARAMETERS,
            execute=partial(_search, catalogue),
        ),
        AgentTool(
            name=INVOKE,
            description=f"Call a tool that {SEARCH} found.",
            parameters=_INVOKE_PARAMETERS,
            execute=partial(_invoke, catalogue),
            exclusive=any(tool.exclusive for tool in hidden.values()),
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Catalogue:
    tools: Mapping[str, AgentTool]
    settings: Disclosure

    def text(self) -> str:
        """What there is: with descriptions, else by name, else only how many."""
        described = "".join(f"\n{name}: {_line(tool)}" for name, tool in self.tools.items())
        named = f"\n{', '.join(self.tools)}"
        for text in (described, named):
            if tokens_of(len(text)) <= self.settings.catalog_tokens:
                return text
        return f" There are {len(self.tools)}."

    def found(self, query: str, limit: int) -> list[AgentTool]:
        """The tools that fit the words best."""
        words = _words(query)
        scored = [(self._score(tool, words), tool) for tool in self.tools.values()]
        best = sorted(scored, key=lambda pair: (-pair[0], pair[1].name))
        return [tool for score, tool in best if score][:limit]

    def suggestions(self, name: str) -> list[str]:
        """Names that may have been meant."""
        from difflib import get_close_matches  # for a call that went wrong

        close = get_close_matches(name, list(self.tools), n=MAX_SUGGESTED)
        more = [tool.name for tool in self.found(name.replace("_", " "), MAX_SUGGESTED)]
        return list(dict.fromkeys([*close, *more]))[:MAX_SUGGESTED]

    @staticmethod
    def _score(tool: AgentTool, words: Sequence[str]) -> int:
        name, parts = tool.name.lower(), _words(tool.name)
        description = tool.description.lower()
        score = 0
        for word in words:
            if word == name or word in parts:
                score += 3
            elif word in name:
                score += 2
            score += word in description
        return score


async def _search(catalogue: _Catalogue, call: ToolCallContext) -> AgentToolResult:
    query = str(call.params["query"]).strip()
    if query.startswith("select:"):
        names = [name.strip() for name in query.removeprefix("select:").split(",") if name.strip()]
        texts = [_schema_of(catalogue, name) for name in names[:MAX_LIMIT]]
        return AgentToolResult.of_text("\n\n".join(texts) or "select needs names")
    limit = call.params.get("limit") or catalogue.settings.max_results
    found = catalogue.found(query, limit)
    if not found:
        return AgentToolResult.of_text(f"Nothing fits. There are {len(catalogue.tools)} tools.")
    lines = [f"{tool.name}({', '.join(_arguments(tool))}): {_line(tool)}" for tool in found]
    return AgentToolResult.of_text("\n".join(lines), details={"found": [t.name for t in found]})


async def _invoke(catalogue: _Catalogue, call: ToolCallContext) -> AgentToolResult:
    name = str(call.params["name"]).strip()
    tool = catalogue.tools.get(name)
    if tool is None:
        raise ToolError(_unknown(catalogue, name))
    args = coerce_arguments(call.params["args"], tool.parameters)
    if problems := Validator(tool.parameters).errors(args):
        told = "; ".join(problems)
        raise ToolError(f"Invalid arguments for {name}: {told}\n{_schema_of(catalogue, name)}")
    return await tool.execute(replace(call, params=args))


def _schema_of(catalogue: _Catalogue, name: str) -> str:
    tool = catalogue.tools.get(name)
    if tool is None:
        return _unknown(catalogue, name)
    shown = {"name": name, "description": tool.description, "parameters": tool.parameters}
    return json.dumps(shown, ensure_ascii=False)


def _unknown(catalogue: _Catalogue, name: str) -> str:
    if name in BRIDGES:
        return f"{name} cannot be called this way."
    close = ", ".join(catalogue.suggestions(name))
    return f"There is no tool {name!r}." + (f" Did you mean: {close}?" if close else "")


def _arguments(tool: AgentTool) -> list[str]:
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required") or ()
    names = properties if isinstance(properties, Mapping) else ()
    return [name if name in required else f"{name}?" for name in names]


def _line(tool: AgentTool) -> str:
    return tool.description.strip().partition("\n")[0][:160]


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]
