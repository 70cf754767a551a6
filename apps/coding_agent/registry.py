"""The tools of a run: which there are, in which order, and which the run may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from coding_agent.approval import Asker
from coding_agent.disclosure import BRIDGES
from coding_agent.foreign_tools import ForeignTool
from coding_agent.tools.checkpoint import CHECKPOINT
from coding_agent.tools.edit import EDIT
from coding_agent.tools.files import READ, WRITE
from coding_agent.tools.find import FIND
from coding_agent.tools.hashline import HASHLINE_EDIT
from coding_agent.tools.jobs import JOBS
from coding_agent.tools.listing import LS
from coding_agent.tools.patch import PATCH
from coding_agent.tools.search import GREP
from coding_agent.tools.shell import bash_tool
from coding_agent.tools.todo import TODO
from coding_agent.tools.toolset import ShellSettings, ToolDef, ToolEnv
from coding_agent.tools.webfetch import WEBFETCH
from coding_agent.tools.websearch import WEBSEARCH
from lemon_agent import AgentTool
from lemon_core.config.tools import ExecuteCode
from lemon_core.config.tools import Web as WebTools
from lemon_core.terminal_backends import TerminalPolicy
from lemon_core.tool_classes import ToolClassTable

EXECUTE_CODE: Final = "execute_code"
RESERVED: Final = frozenset({EXECUTE_CODE, "debug", *BRIDGES})


class ToolRegistry:
    """The definitions in their fixed order: the prompt's prefix must not change between runs."""

    def __init__(
        self,
        shell: ShellSettings,
        web: WebTools | None = None,
        delegation: Sequence[ToolDef] = (),
        code: Callable[[], ExecuteCode] = ExecuteCode,
    ) -> None:
        web = web or WebTools()
        self._code = code
        self._tail: tuple[ExecuteCode, tuple[ToolDef, ...]] | None = None
        self.definitions: tuple[ToolDef, ...] = (
            READ,
            WRITE,
            EDIT,
            HASHLINE_EDIT,
            PATCH,
            LS,
            FIND,
            GREP,
            bash_tool(shell.timeout_ms),
            JOBS,
            TODO,
            CHECKPOINT,
            *((WEBFETCH,) if web.fetch.enabled else ()),
            *((WEBSEARCH,) if web.search.enabled else ()),
            *delegation,
        )
        # The tools of elsewhere may have none of these names.
        self.names = frozenset({*RESERVED, *(each.name for each in self.definitions)})

    def declare(self, table: ToolClassTable) -> None:
        """Tell policies what each tool may do; raises `WeakerClassification`."""
        for definition in self.definitions:
            table.classify(definition.name, definition.classes)
        table.classify(EXECUTE_CODE, {"dangerous"})

    def tail(self) -> tuple[ToolDef, ...]:
        """What the configuration switches on and off while the runtime lives; it stands last, so
        that the rest of the prompt does not change with it."""
        settings = self._code()
        if self._tail is None or self._tail[0] != settings:
            self._tail = settings, (self._execute_code(settings),) if settings.enabled else ()
        return self._tail[1]

    def _execute_code(self, settings: ExecuteCode) -> ToolDef:
        from coding_agent.tools.execute_code import execute_code_tool  # off in most runtimes

        signatures = {one.name: tuple(one.parameters["properties"]) for one in self.definitions}
        return execute_code_tool(settings, signatures)

    def bind(
        self,
        env: ToolEnv,
        table: ToolClassTable,
        asker: Asker,
        lent: Sequence[ForeignTool] = (),
    ) -> list[AgentTool]:
        """The tools that the policy of `env` permits; those that need an approval ask for it.

        `lent` come from elsewhere and last; one with the name of a tool of this app is left out.
        """
        siblings: dict[str, AgentTool] = {}
        env = replace(env, siblings=siblings)
        foreign = [each for each in lent if each.name not in self.names]
        tools = self._bound(self.definitions, env, table, asker)
        for each in env.policy.filter_tools(foreign, table):
            asks = env.policy.requires_approval(each.name, classes=table)
            asks = asks or (each.asks and env.policy.approval_mode(each.name) != "never")
            tool = each.bind(env)
            tools.append(asker.gated(tool) if asks else tool)
        tools += self._bound(self.tail(), env, table, asker)
        siblings.update((tool.name, tool) for tool in tools)
        return tools

    def _bound(
        self, definitions: Sequence[ToolDef], env: ToolEnv, table: ToolClassTable, asker: Asker
    ) -> list[AgentTool]:
        tools: list[AgentTool] = []
        machine = TerminalPolicy.from_environ(env.environ)
        for definition in env.policy.filter_tools(definitions, table):
            tool = definition.bind(env)
            asks = env.policy.requires_approval(tool.name, classes=table)
            asks = asks or any(map(machine.needs_approval, definition.terminals))
            tools.append(asker.gated(tool, definition.question) if asks else tool)
        return tools
