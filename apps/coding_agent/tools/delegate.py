"""`task` and `agent`: giving work to a child of this run, or to another agent.

What comes back is visible answers only. A result is read once: by the call that waited for it, or
as a message in the conversation.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import anyio
import anyio.to_thread

from coding_agent.child import Child, ChildSpec, SpawnRefused
from coding_agent.children import Children
from coding_agent.followups import report
from coding_agent.live_runs import LiveRun
from coding_agent.roles import roles
from coding_agent.tasks import TaskRecord
from coding_agent.tools.toolset import ToolDef, ToolEnv, bool_param, int_param, schema, text_param
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_core import ids, session_key
from lemon_core.policy_fields import InvalidToolPolicy
from lemon_core.runs import THINKING_LEVELS, QueueMode
from lemon_core.tool_classes import ToolClass
from lemon_core.tool_policy import ToolPolicy, intersect

TASK_WAIT_MS: Final = 300_000
AGENT_WAIT_MS: Final = 120_000
CLEANUP_MS: Final = 5_000
PREVIEW_CHARS: Final = 500
MAX_DESCRIPTION: Final = 80
_QUEUE_MODES: Final = tuple(mode for mode in get_args(QueueMode) if mode != "redirect")
_ONLY_TOOLS: Final = re.compile(r"\buse (?:only )?((?:\w+(?:, ?| and )?)+?) tools? only\b", re.I)
_DELEGATION: Final[frozenset[ToolClass]] = frozenset({"delegation"})


def _enum(values: Sequence[str], description: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values), "description": description}


_COMMON: Final[dict[str, dict[str, Any]]] = {
    "prompt": text_param("The whole work: the child sees nothing of this conversation."),
    "description": text_param("A few words for people."),
    "role": text_param("research, implement, review, test, or a configured role."),
    "model": text_param("Another model than yours."),
    "cwd": text_param("Another directory inside the workspace."),
    "tool_policy": {"type": "object", "description": "Fewer rights than yours."},
    "async": bool_param("Go on at once; the result comes as a message. Default true."),
    "auto_followup": bool_param("Whether that message comes. Default true."),
    "task_id": text_param("For poll and get."),
    "task_ids": {"type": "array", "items": {"type": "string"}, "description": "For join."},
    "mode": _enum(("wait_all", "wait_any"), "For join."),
    "timeout_ms": int_param("How long to wait at most.", minimum=1_000),
}


@dataclass(frozen=True, slots=True)
class Delegation:
    """The two tools over the children of a runtime; `agents` are those that may be asked."""

    children: Children
    agents: frozenset[str]
    agent_dir: Path
    default_queue_mode: str

    def tools(self) -> tuple[ToolDef, ...]:
        """Both definitions."""
        task = schema(
            ("action",),
            action=_enum(("run", "poll", "get", "join"), "What to do."),
            thinking_level=_enum(THINKING_LEVELS, "How much the child thinks."),
            queue_mode=_enum(_QUEUE_MODES, "How the result joins the conversation."),
            **_COMMON,
        )
        agent = schema(
            ("action",),
            action=_enum(("run", "poll", "get", "join"), "What to do."),
            agent_id=text_param("Who is asked."),
            continue_session=bool_param("Go on where you last talked. Default true."),
            queue_mode=_enum(_QUEUE_MODES, "How the request joins its queue."),
            followup_queue_mode=_enum(_QUEUE_MODES, "How the result joins the conversation."),
            **_COMMON,
        )
        return (
            ToolDef(
                name="task",
                description="Give work that stands alone to an agent of your own; read its answer "
                "with join, or go on and get it as a message.",
                parameters=task,
                execute=partial(_act, self, self.run_task),
                classes=_DELEGATION,
            ),
            ToolDef(
                name="agent",
                description="Ask another configured agent, which has its own memory and manner.",
                parameters=agent,
                execute=partial(_act, self, self.run_agent),
                classes=_DELEGATION | {"dangerous"},
            ),
        )

    # -- run ---------------------------------------------------------------------------------

    async def run_task(self, env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
        """Start a child; its receipt, or its answer when it was not to be asynchronous."""
        spec = await self._spec(env, call, TASK_WAIT_MS)
        mode = call.params.get("queue_mode") or self.default_queue_mode
        parent = self._parent(env)
        child = await _started(self.children.start_task(parent, replace(spec, queue_mode=mode)))
        return await self._answer(call, child, TASK_WAIT_MS)

    async def run_agent(self, env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
        """Ask another agent; likewise."""
        params = call.params
        agent_id = str(params.get("agent_id") or "").strip()
        if agent_id not in self.agents:
            known = ", ".join(sorted(self.agents))
            raise ToolError(f"there is no agent {agent_id!r}; configured: {known}")
        parent = self._parent(env)
        mode = params.get("followup_queue_mode") or self.default_queue_mode
        spec = replace(
            await self._spec(env, call, AGENT_WAIT_MS),
            queue_mode=mode,
            session_key=_agent_key(agent_id, env, continues=params.get("continue_session", True)),
            meta={"run_queue_mode": params.get("queue_mode") or "collect"},
        )
        child = await _started(self.children.start_agent(parent, spec, agent_id))
        return await self._answer(call, child, AGENT_WAIT_MS)

    def _parent(self, env: ToolEnv) -> LiveRun:
        parent = self.children.live.get(env.identity.run_id)
        if parent is None:
            raise ToolError("this run is ending and starts nothing more")
        return parent

    async def _spec(self, env: ToolEnv, call: ToolCallContext, wait_ms: int) -> ChildSpec:
        params = call.params
        prompt = str(params.get("prompt") or "").strip()
        if not prompt:
            raise ToolError("run needs a prompt")
        is_async = params.get("async", True)
        spec = ChildSpec(
            prompt=prompt,
            description=_description(params.get("description"), prompt),
            role=params.get("role"),
            instructions=await self._instructions(env, params.get("role")),
            model=params.get("model"),
            thinking_level=params.get("thinking_level"),
            cwd=None if params.get("cwd") is None else str(env.guard.resolve(params["cwd"])),
            policy=_policy(params.get("tool_policy")),
            wants_followup=is_async and params.get("auto_followup", True),
            tool_call_id=call.tool_call_id,
        )
        if not is_async:
            spec = replace(spec, timeout_ms=min(params.get("timeout_ms") or wait_ms, wait_ms))
        return _only_named_tools(spec)

    async def _instructions(self, env: ToolEnv, role: str | None) -> str | None:
        if role is None:
            return None
        known = await anyio.to_thread.run_sync(roles, self.agent_dir, str(env.guard.cwd))
        if role not in known:
            raise ToolError(f"there is no role {role!r}; known: {', '.join(known)}")
        return known[role]

    async def _answer(self, call: ToolCallContext, child: Child, wait_ms: int) -> AgentToolResult:
        record = child.record
        if call.params.get("async", True):
            text = f"Task queued: {record.id}"
            return AgentToolResult.of_text(text, details=_details([record]))
        limit = min(call.params.get("timeout_ms") or wait_ms, wait_ms)
        try:
            # The child's own time ends first, and then it may have to clean up.
            await self.children.wait([record.id], "wait_all", limit + CLEANUP_MS)
        finally:
            # Ended or not, by time or by an abort: nobody waits for it any more.
            if call.signal.aborted or child.question is None:
                with anyio.CancelScope(shield=True):
                    await self.children.abort([record.id])
        if child.question is not None and not child.ended.is_set():
            text = f"{child.question}\nAnswer with parent_question, then join task {record.id}."
            return AgentToolResult.of_text(text, details=_details([child.record]))
        ended = await self.children.take(record.id) or record
        text = ended.result or "" if ended.status == "completed" else report([ended])
        return AgentToolResult.of_text(
            text, details=_details([ended]), is_error=ended.status != "completed"
        )

    # -- looking -----------------------------------------------------------------------------

    async def poll(self, env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
        """How a task stands, with the beginning of its answer."""
        (record,) = await self._mine(env, [str(call.params.get("task_id") or "")])
        living = self.children.living(record.id)
        if living is None:
            shown = (record.result or record.error or "")[:PREVIEW_CHARS]
            text = f"Status: {record.status}\n{shown}".rstrip()
        else:
            doing = f" ({living.current_action})" if living.current_action else ""
            text = f"Task status: {record.status}{doing}"
        details = _details([record])
        if living is not None and living.current_action:
            details["current_action"] = living.current_action
        return AgentToolResult.of_text(text, details=details)

    async def get(self, env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
        """The whole answer of a task, which then comes as no message any more."""
        (record,) = await self._mine(env, [str(call.params.get("task_id") or "")])
        record = await self.children.take(record.id) or record
        text = report([record]) if record.has_ended else f"Task status: {record.status}"
        return AgentToolResult.of_text(text, details=_details([record]))

    async def join(self, env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
        """Wait for tasks, within bounds; what has ended comes as no message any more."""
        task_ids = list(dict.fromkeys(call.params.get("task_ids") or ()))
        if not task_ids:
            raise ToolError("join needs task_ids")
        await self._mine(env, task_ids)
        limit = min(call.params.get("timeout_ms") or TASK_WAIT_MS, TASK_WAIT_MS)
        taken: list[TaskRecord] = []
        try:
            await self.children.wait(task_ids, call.params.get("mode") or "wait_all", limit)
            for task_id in task_ids:
                record = await self.children.take(task_id)
                if record is not None:
                    taken.append(record)
        finally:
            left = [t for t in task_ids if t not in {record.id for record in taken}]
            with anyio.CancelScope(shield=True):
                await self.children.release(left)
        ended = [record for record in taken if record.has_ended]
        going = [self._standing(record) for record in taken if not record.has_ended]
        text = "\n\n".join(filter(None, (report(ended), *going)))
        return AgentToolResult.of_text(text, details=_details(taken))

    def _standing(self, record: TaskRecord) -> str:
        living = self.children.living(record.id)
        if living is not None and living.question is not None:
            return f"{living.question}\nAnswer with parent_question."
        return f"Task {record.id} ({record.description}): {record.status}"

    async def _mine(self, env: ToolEnv, task_ids: Sequence[str]) -> list[TaskRecord]:
        """The tasks of this session; an id of another one is as unknown as one of nobody."""
        found: list[TaskRecord] = []
        for task_id in task_ids:
            record = await self.children.get(task_id) if task_id else None
            if record is None or record.parent_session_key != env.identity.session_key:
                raise ToolError(f"there is no task {task_id!r} in this conversation")
            found.append(record)
        return found


async def _act(
    delegation: Delegation,
    run: Callable[[ToolEnv, ToolCallContext], Awaitable[AgentToolResult]],
    env: ToolEnv,
    call: ToolCallContext,
) -> AgentToolResult:
    match call.params.get("action"):
        case "run":
            return await run(env, call)
        case "poll":
            return await delegation.poll(env, call)
        case "get":
            return await delegation.get(env, call)
        case "join":
            return await delegation.join(env, call)
        case other:
            raise ToolError(f"unknown action {other!r}")


async def _started(starting: Awaitable[Child]) -> Child:
    try:
        return await starting
    except SpawnRefused as exc:
        raise ToolError(str(exc)) from exc


def _policy(asked: Mapping[str, object] | None) -> ToolPolicy | None:
    if asked is None:
        return None
    try:
        return ToolPolicy.parse(asked)
    except InvalidToolPolicy as exc:
        raise ToolError(f"tool_policy: {exc}") from exc


def _only_named_tools(spec: ChildSpec) -> ChildSpec:
    """A prompt that says which tools are to be used is taken at its word."""
    found = _ONLY_TOOLS.search(spec.prompt)
    if found is None:
        return spec
    names = re.findall(r"\w+", re.sub(r"\band\b", ",", found.group(1)))
    if not names or not all(name in _KNOWN_TOOLS for name in names):
        return spec
    base = spec.policy or ToolPolicy.of_profile("leaf_worker")
    policy = intersect(base, ToolPolicy.parse({"allow": names}))
    guard = f"\n\nOnly these tools are yours: {', '.join(names)}."
    return replace(spec, policy=policy, prompt=spec.prompt + guard)


_KNOWN_TOOLS: Final = frozenset(
    (
        "read",
        "write",
        "edit",
        "hashline_edit",
        "patch",
        "ls",
        "find",
        "grep",
        "bash",
        "jobs",
        "todo",
        "webfetch",
        "websearch",
    )
)


def _description(given: object, prompt: str) -> str:
    text = " ".join((given if isinstance(given, str) and given.strip() else prompt).split())
    return text if len(text) <= MAX_DESCRIPTION else f"{text[: MAX_DESCRIPTION - 1]}…"


def _agent_key(agent_id: str, env: ToolEnv, *, continues: bool) -> str:
    if not continues:
        return session_key.channel_peer(
            agent_id, "delegate", "agent", "main", f"r{ids.new_uuid()[:12]}"
        )
    digest = hashlib.sha256(env.identity.session_key.encode()).hexdigest()[:16]
    return session_key.channel_peer(
        agent_id, "delegate", "agent", "main", f"p{digest}", thread_id="oracle"
    )


def _details(records: Sequence[TaskRecord]) -> dict[str, object]:
    details: dict[str, object] = {"task_ids": [record.id for record in records]}
    if len(records) == 1:
        (record,) = records
        details |= {"task_id": record.id, "run_id": record.run_id, "status": record.status}
    return details
