"""The tools of a run: which there are, in which order, and which the run may use."""

from __future__ import annotations

from collections.abc import Sequence

from coding_agent.approval import Asker
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
from lemon_core.config.tools import Web as WebTools
from lemon_core.terminal_backends import TerminalPolicy
from lemon_core.tool_classes import ToolClassTable


class ToolRegistry:
    """The definitions in their fixed order: the prompt's prefix must not change between runs."""

    def __init__(
        self, shell: ShellSettings, web: WebTools | None = None, delegation: Sequence[ToolDef] = ()
    ) -> None:
        web = web or WebTools()
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

    def declare(self, table: ToolClassTable) -> None:
        """Tell policies what each tool may do; raises `WeakerClassification`."""
        for definition in self.definitions:
            table.classify(definition.name, definition.classes)

    def bind(
        self,
        env: ToolEnv,
        table: ToolClassTable,
        asker: Asker,
        lent: Sequence[AgentTool] = (),
    ) -> list[AgentTool]:
        """The tools that the policy of `env` permits; those that need an approval ask for it.

        `lent` come from elsewhere and last; one with the name of a tool of this app is left out.
        """
        tools: list[AgentTool] = []
        machine = TerminalPolicy.from_environ(env.environ)
        for definition in env.policy.filter_tools(self.definitions, table):
            tool = definition.bind(env)
            asks = env.policy.requires_approval(tool.name, classes=table)
            asks = asks or any(map(machine.needs_approval, definition.terminals))
            tools.append(asker.gated(tool, definition.question) if asks else tool)
        own = {definition.name for definition in self.definitions}
        foreign = [tool for tool in lent if tool.name not in own]
        for tool in env.policy.filter_tools(foreign, table):
            asks = env.policy.requires_approval(tool.name, classes=table)
            tools.append(asker.gated(tool) if asks else tool)
        return tools
