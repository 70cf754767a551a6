"""Everything a run needs before its first model call: model, conversation, tools, prompt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import get_args

from coding_agent.approval import Asker
from coding_agent.delivered import DeliveredMessage, followup_details
from coding_agent.errors import EmptyPrompt, NoWorkingDirectory, OutsideWorkspace, ResumeError
from coding_agent.guardrails import bounded
from coding_agent.prompt import PromptParts, plain_prompt, system_prompt
from coding_agent.recalled import recalled_block
from coding_agent.recorder import Recall
from coding_agent.services import Services
from coding_agent.session_store import SessionFile
from coding_agent.tools.questions import ASK_PARENT
from coding_agent.tools.toolset import RunIdentity, ToolEnv
from coding_agent.workspace import PathGuard, in_workspace
from lemon_agent import AgentTool, Budget, LoopConfig
from lemon_agent.contributors import ContributionRequest, Section, split
from lemon_agent.tool_registry import SessionScope
from lemon_ai import ImageContent, Message, StreamOptions, TextContent, UserMessage
from lemon_ai.types import ImageMimeType, ThinkingLevel, UserContent
from lemon_core import session_key as session_keys
from lemon_core.execution_context import ExecutionContext
from lemon_core.logs import get_logger
from lemon_core.runs import DEFAULT_AGENT, Image
from lemon_core.tool_policy import intersect
from lemon_gateway.executor import RunOptions
from lemon_gateway.requests import ExecutionRequest

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """`notice` is one line for the user when another model answers than might be expected."""

    session: SessionFile
    history: Sequence[Message]
    prompt: UserMessage
    system_prompt: str
    tools: Sequence[AgentTool]
    config: LoopConfig
    notice: str | None
    recall: Recall | None = None


async def make_plan(request: ExecutionRequest, opts: RunOptions, services: Services) -> RunPlan:
    """The plan of a run.

    Raises the `CodingAgentError`s, and what the choice of a model raises: lemon_agent's
    `UnknownModel` and `NoModel`, lemon_ai's `ModelListError`.
    """
    context = request.execution_context
    context.require_valid(services.now_ms())
    prompt = prompt_message(request)
    cwd = working_directory(request, opts)
    choice = await services.models.choose_model(request.meta_text("model"))
    session, history = await _open_session(request, cwd, services)
    tools = _tools(request, cwd, session.id, services) if choice.model.tools else []
    config = LoopConfig(
        model=choice.model,
        stream_fn=services.models.stream,
        stream_options=StreamOptions(
            headers=request_headers(request),
            session_id=session.id,
            reasoning=_reasoning(request.meta_text("thinking_level"), services),
        ),
        get_api_key=services.models.get_api_key,
        max_tool_turns=None,
        budget=_budget(context),
        tool_schema_snapshot=services.schemas.snapshot(tools),
        cwd=cwd,
        run=context,
        watch=services.watch,
    )
    text = plain_prompt(request.meta_text("system_prompt"))
    recall = None
    if tools:
        asked = _contribution(request, cwd, session.id)
        system, recalled = split(await services.contributors.collect(asked))
        recall = _recalling(asked, services)
        text = await _prompt(request, cwd, [tool.name for tool in tools], system, services)
        if (block := recalled_block(recalled)) is not None:
            session.attach(prompt, block)
    return RunPlan(session, history, prompt, text, tools, config, choice.notice, recall)


def working_directory(request: ExecutionRequest, opts: RunOptions) -> str:
    """The real path of the directory to work in.

    Raises `NoWorkingDirectory` or `OutsideWorkspace`.
    """
    workspace = request.execution_context.workspace
    cwd = os.path.realpath(opts.cwd or request.cwd or workspace.cwd)
    if not os.path.isdir(cwd):
        raise NoWorkingDirectory(cwd)
    if not in_workspace(cwd, workspace):
        raise OutsideWorkspace(cwd, workspace.roots)
    return cwd


def prompt_message(request: ExecutionRequest) -> UserMessage:
    """What the run answers: the user's words, or a result that was delivered in their place.

    Raises `EmptyPrompt`.
    """
    followups = request.meta.get("async_followups")
    if isinstance(followups, list) and followups:
        text = clean_text(request.prompt)
        if not text.strip():
            raise EmptyPrompt
        return DeliveredMessage.of(text, followup_details(followups))
    return user_message(request.prompt, request.images)


def user_message(prompt: str, images: Sequence[Image]) -> UserMessage:
    """The prompt as a message; raises `EmptyPrompt`.

    An image of a kind that no model takes is named in the text instead: it must not cost the words
    that came with it.
    """
    text = clean_text(prompt)
    if not text.strip() and not images:
        raise EmptyPrompt
    if not images:
        return UserMessage(content=text)
    blocks: list[UserContent] = [TextContent(text=text)] if text.strip() else []
    for image in images:
        mime = "image/jpeg" if image.mime_type == "image/jpg" else image.mime_type
        if mime in get_args(ImageMimeType):
            blocks.append(ImageContent.model_validate({"data": image.data, "mime_type": mime}))
        else:
            blocks.append(TextContent(text=f"[An image of type {mime} was left out.]"))
    return UserMessage(content=blocks)


def clean_text(text: str) -> str:
    """`text` without half surrogate pairs, which no wire and no file can hold."""
    return text.encode(errors="replace").decode()


def agent_id(request: ExecutionRequest) -> str:
    """Which agent runs: as the request says, else as its session key does."""
    named = request.meta_text("agent_id")
    return named.strip() if named else session_keys.agent_id(request.session_key) or DEFAULT_AGENT


def request_headers(request: ExecutionRequest) -> dict[str, str]:
    """What every model request carries, so that a proxy can tell runs apart."""
    values = {
        "x-lemon-run-id": request.run_id,
        "x-lemon-session-key": request.session_key,
        "x-lemon-agent-id": agent_id(request),
    }
    return {name: _header_value(value) for name, value in values.items() if value}


async def _open_session(
    request: ExecutionRequest, cwd: str, services: Services
) -> tuple[SessionFile, list[Message]]:
    token = request.resume
    # Tokens of other engines are kept for them by the router; here there is none then.
    if token is None or not token.is_native():
        parent = request.meta_text("parent_session") if request.lane == "subagent" else None
        return services.sessions.new(cwd, parent), []
    try:
        at = request.meta_text("resume_entry")
        return await services.sessions.load(token.value, cwd, at)
    except ResumeError as exc:
        if request.meta.get("resume_source") != "auto":
            raise
        log.warning(
            "session.resume_fallback",
            source="auto",
            session_id=exc.session_id,
            fallback="fresh",
            reason=exc.reason,
        )
        return services.sessions.new(cwd), []


def _tools(
    request: ExecutionRequest, cwd: str, session_id: str, services: Services
) -> list[AgentTool]:
    context = request.execution_context
    spill_dir = services.sessions.spill_dir(session_id)
    env = ToolEnv(
        guard=PathGuard(
            Path(cwd),
            services.settings.home,
            context.workspace,
            readable=(spill_dir.resolve(),),
        ),
        policy=intersect(context.capabilities, request.tool_policy),
        environ=services.settings.environ,
        spill_dir=spill_dir,
        shell=services.settings.shell,
        ripgrep=services.ripgrep,
        identity=RunIdentity(request.run_id, session_id, request.session_key, agent_id(request)),
        shared=services.shared_tools,
    )
    asker = Asker(
        services.approvals,
        run_id=request.run_id,
        session_id=session_id,
        session_key=request.session_key,
        agent_id=agent_id(request),
        # Whoever started the run says that questions reach a person.
        can_ask=request.meta_text("approvals") == "ask",
    )
    lent = services.lent_tools.for_session(request.session_key, context)
    bound = services.tools.bind(env, services.tool_classes, asker, lent)
    # Only a task has somebody to ask.
    has_parent = session_scope(request) == "subagent"
    offered = [tool for tool in bound if has_parent or tool.name != ASK_PARENT]
    return [bounded(tool, env.spill_dir / "results") for tool in offered]


def session_scope(request: ExecutionRequest) -> SessionScope:
    """Whether the run works for the user or for another run of this app."""
    return "subagent" if request.lane == "subagent" else "main"


def _contribution(request: ExecutionRequest, cwd: str, session_id: str) -> ContributionRequest:
    """What other apps are asked for, about the turn that the run answers."""
    return ContributionRequest(
        cwd=cwd,
        session_key=request.session_key,
        session_id=session_id,
        agent_id=agent_id(request),
        run_id=request.run_id,
        session_scope=session_scope(request),
        query=request.prompt,
    )


def _recalling(asked: ContributionRequest, services: Services) -> Recall:
    """What is recalled for words that come while the run goes on."""

    async def recall(message: UserMessage) -> str | None:
        query = message.content if isinstance(message.content, str) else None
        sections = await services.contributors.collect(replace(asked, query=query))
        return recalled_block(split(sections)[1])

    return recall


async def _prompt(
    request: ExecutionRequest,
    cwd: str,
    tool_names: Sequence[str],
    sections: Sequence[Section],
    services: Services,
) -> str:
    workspace, scope = request.execution_context.workspace, session_scope(request)
    files = services.prompt_files
    home, instructions = await files.read(scope, cwd, workspace)
    parts = PromptParts(
        cwd=cwd,
        tool_names=tool_names,
        today=datetime.fromtimestamp(services.now_ms() / 1000).astimezone().date(),
        own=request.meta_text("system_prompt"),
        scope=scope,
        home_dir=str(files.home_dir),
        home=home,
        sections=sections,
        instructions=instructions,
    )
    return system_prompt(parts)


def _reasoning(asked: str | None, services: Services) -> ThinkingLevel | bool | None:
    level = asked or services.settings.thinking_level
    if level == "off":
        return False
    known: dict[str, ThinkingLevel] = {name: name for name in get_args(ThinkingLevel)}
    return known.get(level)


def _budget(context: ExecutionContext) -> Budget:
    limits = context.limits
    return Budget(limits.max_tokens, limits.max_cost_usd, limits.max_tool_calls)


def _header_value(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    return "".join(char if " " <= char <= "~" else "?" for char in value)
