"""The tools of a run that are not this app's own: who offers them, and who wins a name.

In this order, the earlier one wins a name: what the gateway lends the session, what other apps
registered with lemon_agent, WASM tools, tools of extensions. This app's own tools win over all of
them. Each source is sorted by name, so that the prompt's prefix stays what it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Self

from coding_agent.extensions.checking import OfferedTool
from coding_agent.extensions.host import NO_EXTENSIONS, Extensions, ExtensionSet
from lemon_agent import AgentTool, AgentToolResult, ToolCallContext, ToolError
from lemon_agent.tool_registry import ToolOptions, ToolRegistry
from lemon_core.telemetry import Telemetry
from lemon_core.tool_classes import ToolClass, ToolClassTable, WeakerClassification

if TYPE_CHECKING:
    from coding_agent.tools.toolset import ToolEnv
    from coding_agent.wasm.host import WasmTools
    from coding_agent.wasm.manifests import WasmTool

Origin = Literal["built_in", "gateway", "registered", "wasm", "extension"]
SPAN: Final = "coding_agent.extension_tool"
MAX_SETS: Final = 64
UNDECLARED: Final[frozenset[ToolClass]] = frozenset({"dangerous", "external"})


@dataclass(frozen=True, slots=True)
class ForeignTool:
    """A tool and where it comes from; `bind` gives it for one run, `owner` is its extension.

    `asks` wants each call approved unless the policy says `never`.
    """

    name: str
    bind: Callable[[ToolEnv], AgentTool]
    origin: Origin
    owner: str = ""
    asks: bool = False

    @classmethod
    def of(cls, tool: AgentTool, origin: Origin, owner: str = "") -> Self:
        """A tool that is the same for all runs."""
        return cls(tool.name, lambda _: tool, origin, owner)

    @property
    def claimant(self) -> str:
        """Who offers it, for a person."""
        return f"{self.origin}:{self.owner}" if self.owner else self.origin

    @property
    def deferrable(self) -> bool:
        """Whether it may be hidden behind a search."""
        return self.origin in ("wasm", "extension")


@dataclass(frozen=True, slots=True)
class Conflict:
    """One name that several claim; the winner and the shadowed are named with their origin."""

    tool_name: str
    winner: str
    shadowed: tuple[str, ...]

    def listed(self) -> dict[str, object]:
        """As the report shows it."""
        return {
            "tool_name": self.tool_name,
            "winner": self.winner,
            "shadowed": list(self.shadowed),
        }


@dataclass(slots=True)
class Claims:
    """Who claims which name: the first one has it."""

    _claims: dict[str, list[str]] = field(default_factory=dict)

    def claim(self, name: str, claimant: str) -> bool:
        """Whether the name is the claimant's."""
        claims = self._claims.setdefault(name, [])
        claims.append(claimant)
        return len(claims) == 1

    def conflicts(self) -> list[Conflict]:
        """The names that more than one wants."""
        return [
            Conflict(name, claims[0], tuple(claims[1:]))
            for name, claims in sorted(self._claims.items())
            if len(claims) > 1
        ]


class ForeignTools:
    """One per runtime; `own` gives the names that are taken."""

    def __init__(
        self,
        own: Callable[[], Collection[str]],
        table: ToolClassTable,
        extensions: Extensions,
        wasm: WasmTools,
        registered: ToolRegistry,
        telemetry: Telemetry,
    ) -> None:
        self._own, self._table, self._telemetry = own, table, telemetry
        self._registered = registered
        self.extensions, self.wasm = extensions, wasm
        # By the set that they were made from: it is kept, so its identity means it.
        self._made: dict[int, tuple[ExtensionSet, tuple[ForeignTool, ...]]] = {}

    async def of(
        self, cwd: str, options: ToolOptions, lent: Sequence[AgentTool]
    ) -> list[ForeignTool]:
        """What a run in `cwd` has; `lent` is what the gateway lends it."""
        found = await self.extensions.of(cwd)
        is_alone = found is NO_EXTENSIONS and not lent and not self._registered.all()
        if is_alone and not self.wasm.settings.enabled:
            return []
        taken = set(self._own())
        tools: list[ForeignTool] = []
        for each in (
            *(ForeignTool.of(tool, "gateway") for tool in lent),
            *await self._offered(cwd, options, taken),
            *map(self._of_wasm, (await self.wasm.find(cwd)).tools),
            *self._of_extensions(found),
        ):
            if each.name not in taken:
                taken.add(each.name)
                tools.append(each)
        return tools

    async def conflicts(self, cwd: str, lent: Sequence[AgentTool] = ()) -> list[Conflict]:
        """The names that several claim for work in `cwd`."""
        found = await self.extensions.of(cwd)
        claims = Claims()
        for name in sorted(self._own()):
            claims.claim(name, "built_in")
        for borrowed in lent:
            claims.claim(borrowed.name, "gateway")
        for name in self._registered.all():
            claims.claim(name, "registered")
        for tool in (await self.wasm.find(cwd)).tools:
            claims.claim(tool.name, "wasm")
        for each in self._of_extensions(found):
            claims.claim(each.name, each.claimant)
            for other in found.shadowed.get(each.name, ()):
                claims.claim(each.name, f"extension:{other}")
        return claims.conflicts()

    async def counts(self, cwd: str) -> dict[str, int]:
        """How many tools each source has for work in `cwd`."""
        found = await self.extensions.of(cwd)
        return {
            "built_in": len(self._own()),
            "registered": len(self._registered.all()),
            "wasm": len((await self.wasm.find(cwd)).tools),
            "extension": len(found.tools),
        }

    async def _offered(
        self, cwd: str, options: ToolOptions, taken: Collection[str]
    ) -> list[ForeignTool]:
        if not self._registered.all():
            return []
        tools = await self._registered.available(taken, cwd, options)
        return [ForeignTool.of(tool, "registered") for tool in tools]

    def _of_extensions(self, found: ExtensionSet) -> tuple[ForeignTool, ...]:
        made = self._made.get(id(found))
        if made is not None and made[0] is found:
            return made[1]
        tools = tuple(map(self._foreign, found.tools))
        if len(self._made) >= MAX_SETS:
            self._made.clear()
        self._made[id(found)] = (found, tools)
        return tools

    def _of_wasm(self, tool: WasmTool) -> ForeignTool:
        if tool.name not in self._own():
            declare(self._table, tool.name, tool.classes)
        bind = partial(self.wasm.bound, tool)
        return ForeignTool(tool.name, bind, "wasm", asks=tool.asks)

    def _foreign(self, offered: OfferedTool) -> ForeignTool:
        if offered.tool.name not in self._own():
            declare(self._table, offered.tool.name, offered.classes)
        return ForeignTool.of(self._watched(offered), "extension", offered.extension)

    def _watched(self, offered: OfferedTool) -> AgentTool:
        """The tool, whose calls are told to telemetry and end nothing but themselves."""
        owner = _digest(offered.extension)

        async def execute(call: ToolCallContext) -> AgentToolResult:
            facts = {"extension": owner, "call": _digest(call.tool_call_id)}
            with self._telemetry.span(SPAN, facts):
                try:
                    return await offered.tool.execute(call)
                except SystemExit as exc:
                    raise ToolError(f"the tool wanted to end the process: {exc}") from exc

        # What may change something runs alone, and only when its call is on disk.
        changes = offered.classes is None or "dangerous" in offered.classes
        return replace(offered.tool, execute=execute, exclusive=offered.tool.exclusive or changes)


def declare(table: ToolClassTable, name: str, classes: frozenset[ToolClass] | None) -> None:
    """Class a tool; None counts as dangerous and external. What it was classed before stays: two
    projects may have tools of one name, and the stricter answer holds for both."""
    given = UNDECLARED if classes is None else classes
    try:
        table.classify(name, given)
    except WeakerClassification as exc:
        table.classify(name, given | exc.lost)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
