"""`extensions_status`: which extensions are in use, what is wrong with them, and a reload."""

from __future__ import annotations

import json
from functools import partial

from coding_agent.extensions.report import ExtensionReport, as_lines
from coding_agent.foreign_tools import ForeignTools
from coding_agent.tools.toolset import ToolDef, ToolEnv, bool_param, schema
from lemon_agent import AgentToolResult, ToolCallContext, ToolError


def extensions_tool(foreign: ForeignTools, report: ExtensionReport) -> ToolDef:
    """The definition."""
    return ToolDef(
        name="extensions_status",
        description="Show extensions and their faults; reload reads them again for the next run.",
        parameters=schema(
            ("action",),
            action={"type": "string", "enum": ["status", "reload"]},
            include_details=bool_param("The whole report as JSON."),
        ),
        execute=partial(_extensions_status, foreign, report),
    )


async def _extensions_status(
    foreign: ForeignTools, report: ExtensionReport, env: ToolEnv, call: ToolCallContext
) -> AgentToolResult:
    cwd = str(env.guard.cwd)
    lines: list[str] = []
    if call.params["action"] == "reload":
        # It runs code outside of any sandbox, so it takes what commands take.
        if env.policy.sandbox or not env.policy.allowed("bash"):
            raise ToolError("extensions are not reloaded under a policy that confines commands")
        await foreign.extensions.reload(cwd)
        lines.append("Extensions were read again; their tools change with the next run.")
    details = bool(call.params.get("include_details"))
    told = await report.of(cwd, details=details)
    if details:
        lines.append(json.dumps(told, indent=2, ensure_ascii=False, default=str))
    else:
        lines += as_lines(told)
    return AgentToolResult.of_text("\n".join(lines), details=told)
