"""The tools of a run: which there are, in which order, and which the run may use."""

from __future__ import annotations

from coding_agent.approval import Asker
from coding_agent.tools.edit import EDIT
from coding_agent.tools.files import READ, WRITE
from coding_agent.tools.listing import LS
from coding_agent.tools.search import GREP
from coding_agent.tools.shell import bash_tool
from coding_agent.tools.toolset import ShellSettings, ToolDef, ToolEnv
from lemon_agent import AgentTool
from lemon_core.terminal_backends import TerminalPolicy
from lemon_core.tool_classes import ToolClassTable


class ToolRegistry:
    """The definitions in their fixed order: the prompt's prefix must not change between runs."""

    def __init__(self, shell: ShellSettings) -> None:
        self.definitions: tuple[ToolDef, ...] = (
            READ,
            WRITE,
            EDIT,
            LS,
            GREP,
            bash_tool(shell.timeout_ms),
        )

    def declare(self, table: ToolClassTable) -> None:
        """Tell policies what each tool may do; raises `WeakerClassification`."""
        for definition in self.definitions:
            table.classify(definition.name, definition.classes)

    def bind(self, env: ToolEnv, table: ToolClassTable, asker: Asker) -> list[AgentTool]:
        """The tools that the policy of `env` permits; those that need an approval ask for it."""
        tools: list[AgentTool] = []
        machine = TerminalPolicy.from_environ(env.environ)
        for definition in env.policy.filter_tools(self.definitions, table):
            tool = definition.bind(env)
            asks = env.policy.requires_approval(tool.name, classes=table)
            if definition.terminal is not None:
                asks = asks or machine.needs_approval(definition.terminal)
            tools.append(asker.gated(tool) if asks else tool)
        return tools
