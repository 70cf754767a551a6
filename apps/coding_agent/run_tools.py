"""The tools of one run: this app's and everybody else's, as its authority permits them."""

from __future__ import annotations

from pathlib import Path

from coding_agent.approval import Asker
from coding_agent.disclosure import disclosed
from coding_agent.foreign_tools import ForeignTool
from coding_agent.guardrails import bounded
from coding_agent.run_request import agent_id, is_strangers, session_scope
from coding_agent.secret_guard import secretive
from coding_agent.services import Services
from coding_agent.tools.questions import ASK_PARENT
from coding_agent.tools.toolset import RunIdentity, ToolEnv
from coding_agent.workspace import PathGuard
from lemon_agent import AgentTool
from lemon_agent.tool_registry import ToolOptions
from lemon_core.tool_policy import intersect
from lemon_gateway.requests import ExecutionRequest


async def run_tools(
    request: ExecutionRequest, cwd: str, session_id: str, services: Services
) -> list[AgentTool]:
    """What the run may use, each tool wrapped as its policy wants."""
    foreign = await _foreign(request, cwd, session_id, services)
    env, asker = _env(request, cwd, session_id, services), _asker(request, session_id, services)
    bound = services.tools.bind(env, services.tool_classes, asker, foreign)
    # Only a task has somebody to ask.
    has_parent = session_scope(request) == "subagent"
    offered = [tool for tool in bound if has_parent or tool.name != ASK_PARENT]
    deferrable = {each.name for each in foreign if each.deferrable}
    if deferrable:
        settings, sizes = services.disclosure(), services.schema_sizes
        offered = disclosed(offered, deferrable, env.policy, settings, sizes)
    results, table = env.spill_dir / "results", services.tool_classes
    return [
        bounded(
            secretive(tool, services.secrets, writes="dangerous" in table.classes(tool.name)),
            results,
        )
        for tool in offered
    ]


async def _foreign(
    request: ExecutionRequest, cwd: str, session_id: str, services: Services
) -> list[ForeignTool]:
    lent = services.lent_tools.for_session(request.session_key, request.execution_context)
    options = ToolOptions(
        session_scope=session_scope(request),
        session_key=request.session_key,
        session_id=session_id,
        agent_id=agent_id(request),
        run_id=request.run_id,
        workspace_dir=str(services.prompt_files.home_dir),
    )
    return await services.foreign_tools.of(cwd, options, lent)


def _env(request: ExecutionRequest, cwd: str, session_id: str, services: Services) -> ToolEnv:
    context = request.execution_context
    spill_dir = services.sessions.spill_dir(session_id)
    return ToolEnv(
        guard=PathGuard(
            Path(cwd),
            services.settings.home,
            context.workspace,
            readable=(spill_dir,),
            own=None if is_strangers(request) else services.own_files,
        ),
        policy=intersect(context.capabilities, request.tool_policy),
        environ=services.settings.environ,
        spill_dir=spill_dir,
        shell=services.settings.shell,
        ripgrep=services.ripgrep,
        identity=RunIdentity(request.run_id, session_id, request.session_key, agent_id(request)),
        shared=services.shared_tools,
    )


def _asker(request: ExecutionRequest, session_id: str, services: Services) -> Asker:
    return Asker(
        services.approvals,
        run_id=request.run_id,
        session_id=session_id,
        session_key=request.session_key,
        agent_id=agent_id(request),
        # Whoever started the run says that questions reach a person.
        can_ask=request.meta_text("approvals") == "ask",
    )
