"""The tools of a run: which there are, in which order, and which the run may use."""

from __future__ import annotations

from dataclasses import replace

from coding_agent.tools.edit import EDIT
from coding_agent.tools.files import READ, WRITE
from coding_agent.tools.listing import LS
from coding_agent.tools.search import GREP
from coding_agent.tools.shell import bash_tool
from coding_agent.tools.toolset import ShellSettings, ToolDef, ToolEnv
from lemon_agent import AgentTool, AgentToolResult, ToolCallContext
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

    def bind(self, env: ToolEnv, table: ToolClassTable) -> list[AgentTool]:
        """The tools that the policy of `env` permits; those that need an approval refuse."""
        return [
            self._bound(definition, env, table)
            for definition in env.policy.filter_tools(self.definitions, table)
        ]

    def _bound(self, definition: ToolDef, env: ToolEnv, table: ToolClassTable) -> AgentTool:
        tool = definition.bind(env)
        if env.policy.requires_approval(tool.name, classes=table):
            return replace(tool, execute=_refuse)
        return tool


async def _refuse(_: ToolCallContext) -> AgentToolResult:
    """There is nobody to ask, so the call is refused and its body never runs."""
    return AgentToolResult.of_text(
        "This call needs an approval, and approvals are not available here. It was not run.",
        details={"reason": "approval_error"},
        is_error=True,
    )
