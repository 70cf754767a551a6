"""Commands, requests and events as they are in daily use."""

from __future__ import annotations

from lemon_core.events import Completion, Delta, Event, RunCompleted, RunStarted
from lemon_core.execution_context import ExecutionContext, Principal, Provenance, Workspace
from lemon_core.runs import ExecutionCommand
from lemon_core.tool_policy import ToolPolicy

SESSION = "agent:default:main"
NOW_MS = 1_700_000_000_000


def context(run_id: str) -> ExecutionContext:
    """The context of a top-level run of the operator."""
    return ExecutionContext.root(
        run_id=run_id,
        session_key=SESSION,
        agent_id="default",
        principal=Principal(kind="operator", id="operator"),
        provenance=Provenance(origin="unknown"),
        workspace=Workspace(cwd="/", roots=("/",)),
        capabilities=ToolPolicy.full_access(),
        now_ms=NOW_MS,
    )


def command(run_id: str, prompt: str = "hello") -> ExecutionCommand:
    """A command that any gateway takes."""
    return ExecutionCommand(
        run_id=run_id,
        session_key=SESSION,
        prompt=prompt,
        conversation_key=("session", SESSION),
        execution_context=context(run_id),
        meta={"origin": "unknown"},
    )


def meta(run_id: str) -> dict[str, object]:
    """The routing identity of a run's events."""
    return {"run_id": run_id, "session_key": SESSION, "origin": "unknown", "model": "m"}


def started(run_id: str) -> Event:
    """The first event of a run."""
    payload = RunStarted(run_id=run_id, session_key=SESSION)
    return Event("run_started", NOW_MS, payload, meta(run_id))


def delta(run_id: str, seq: int, text: str | None = None) -> Event:
    """A piece of the answer."""
    payload = Delta(run_id=run_id, seq=seq, text=f"w{seq} " if text is None else text)
    return Event("delta", NOW_MS + seq, payload, meta(run_id))


def completed(run_id: str, answer: str = "done", *, ok: bool = True) -> Event:
    """The last event of a run."""
    payload = RunCompleted(completed=Completion(ok=ok, answer=answer), duration_ms=7)
    return Event("run_completed", NOW_MS + 9_000, payload, meta(run_id))
