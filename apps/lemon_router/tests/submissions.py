"""Submissions for tests of the queue."""

from __future__ import annotations

from lemon_core.execution_context import ExecutionContext, Principal, Provenance, Workspace
from lemon_core.resume import ResumeToken, resume_conversation, session_conversation
from lemon_core.runs import ExecutionCommand, Image, QueueMode
from lemon_core.tool_policy import ToolPolicy
from lemon_router.requests import Submission

SESSION = "agent:a:main"


def submission(
    run_id: str,
    mode: str = "collect",
    *,
    session_key: str = SESSION,
    origin: str = "unknown",
    who: str = "operator",
    prompt: str | None = None,
    images: tuple[Image, ...] = (),
    policy: dict[str, object] | None = None,
    meta: dict[str, object] | None = None,
    token: ResumeToken | None = None,
    cwd: str = "/tmp",
) -> Submission:
    """A submission whose order is its id, when that is a number."""
    capabilities = ToolPolicy.parse(policy or {})
    context = ExecutionContext.root(
        run_id=run_id,
        session_key=session_key,
        agent_id="a",
        principal=Principal(kind="user", id=who),
        provenance=Provenance(origin=origin),
        workspace=Workspace(cwd=cwd, roots=(cwd,)),
        capabilities=capabilities,
        now_ms=0,
    )
    key = session_conversation(session_key) if token is None else resume_conversation(token)
    command = ExecutionCommand(
        run_id=run_id,
        session_key=session_key,
        prompt=run_id if prompt is None else prompt,
        conversation_key=key,
        execution_context=context,
        images=images,
        cwd=cwd,
        resume=token,
        tool_policy=capabilities,
        meta=meta or {},
    )
    asked: QueueMode = mode  # type: ignore[assignment]  # tests also try modes that do not exist
    order = int(run_id) if run_id.isdigit() else 0
    return Submission(command, key, asked, token is not None, order=order, origin=origin)
