"""Everything a run needs before its first model call: model, conversation, tools, prompt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import get_args

from coding_agent.commands import Asked
from coding_agent.delivered import DeliveredMessage, followup_details
from coding_agent.errors import EmptyPrompt, NoWorkingDirectory, OutsideWorkspace, ResumeError
from coding_agent.extensions.hooks import HookFeed
from coding_agent.prompt import PromptParts, plain_prompt, system_prompt
from coding_agent.recalled import recalled_block
from coding_agent.recorder import Recall
from coding_agent.run_request import agent_id, is_strangers, session_scope
from coding_agent.run_tools import run_tools
from coding_agent.services import Services
from coding_agent.session_store import SessionFile
from coding_agent.workspace import in_workspace
from lemon_agent import AgentTool, Budget, LoopConfig
from lemon_agent.contributors import ContributionRequest, Section, split
from lemon_ai import ImageContent, Message, StreamOptions, TextContent, UserMessage
from lemon_ai.types import ImageMimeType, ThinkingLevel, UserContent
from lemon_core.execution_context import ExecutionContext
from lemon_core.logs import get_logger
from lemon_core.runs import Image
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
    hooks: HookFeed | None = None


async def make_plan(request: ExecutionRequest, opts: RunOptions, services: Services) -> RunPlan:
    """The plan of a run.

    Raises the `CodingAgentError`s, and what the choice of a model raises: lemon_agent's
    `UnknownModel` and `NoModel`, lemon_ai's `ModelListError`.
    """
    context = request.execution_context
    context.require_valid(services.now_ms())
    cwd = working_directory(request, opts)
    # First of all: an extension may speak the API of the model that answers.
    extensions = await services.foreign_tools.extensions.of(cwd)
    hooks = HookFeed(extensions.hooks, services.clock) if extensions.hooks else None
    asked = await _asked(request, cwd, services)
    prompt = prompt_message(request, asked.text)
    choice = await services.models.choose_model(request.meta_text("model") or asked.model)
    session, history = await _open_session(request, cwd, services)
    tools: Sequence[AgentTool] = ()
    if choice.model.tools:
        tools = await run_tools(request, cwd, session.id, services)
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
        watch=services.watch if hooks is None else hooks.watching(services.watch),
    )
    own = await _own_prompt(request, cwd, services)
    text = plain_prompt(own)
    recall = None
    if tools:
        turn = _contribution(request, cwd, session.id)
        system, recalled = split(await services.contributors.collect(turn))
        recall = _recalling(turn, services)
        text = await _prompt(request, cwd, own, [tool.name for tool in tools], system, services)
        if (block := recalled_block(recalled)) is not None:
            session.attach(prompt, block)
    return RunPlan(session, history, prompt, text, tools, config, choice.notice, recall, hooks)


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


async def _asked(request: ExecutionRequest, cwd: str, services: Services) -> Asked:
    """The prompt with the user's own commands spelled out; results and tasks call none."""
    if request.meta.get("async_followups") or session_scope(request) == "subagent":
        return Asked(request.prompt)
    return await services.commands.asked(request.prompt, cwd)


def prompt_message(request: ExecutionRequest, text: str | None = None) -> UserMessage:
    """What the run answers: the user's words, or a result that was delivered in their place.

    `text` stands for the prompt where that called a command.

    Raises `EmptyPrompt`.
    """
    followups = request.meta.get("async_followups")
    if isinstance(followups, list) and followups:
        text = clean_text(request.prompt)
        if not text.strip():
            raise EmptyPrompt
        return DeliveredMessage.of(text, followup_details(followups))
    return user_message(request.prompt if text is None else text, request.images)


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


async def _own_prompt(request: ExecutionRequest, cwd: str, services: Services) -> str | None:
    """What the caller puts in front of the prompt: its own words, then a template that it names."""
    given = request.meta_text("system_prompt")
    if (name := request.meta_text("prompt_template")) is None:
        return given
    workspace = request.execution_context.workspace
    template = await services.prompt_files.template(name, cwd, workspace)
    return "\n\n".join(filter(None, (given, template)))


async def _prompt(
    request: ExecutionRequest,
    cwd: str,
    own: str | None,
    tool_names: Sequence[str],
    sections: Sequence[Section],
    services: Services,
) -> str:
    workspace, scope = request.execution_context.workspace, session_scope(request)
    files = services.prompt_files
    seen = "subagent" if is_strangers(request) else scope
    home, instructions = await files.read(seen, cwd, workspace)
    parts = PromptParts(
        cwd=cwd,
        tool_names=tool_names,
        today=datetime.fromtimestamp(services.now_ms() / 1000).astimezone().date(),
        own=own,
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
