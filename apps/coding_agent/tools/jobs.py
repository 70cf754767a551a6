"""`jobs`: commands in the background, listed, read and ended."""

from __future__ import annotations

from typing import Any, Final

import anyio.to_thread

from coding_agent.jobs import Job
from coding_agent.tools.live_output import clean, shown_excerpt
from coding_agent.tools.output import Excerpt
from coding_agent.tools.toolset import ToolDef, ToolEnv, int_param, schema, text_param
from lemon_agent import AgentToolResult, ToolCallContext, ToolError


async def _jobs(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    params, jobs, session_id = call.params, env.shared.jobs, env.identity.session_id
    if params["action"] == "list":
        rows = [_row(env, job) for job in jobs.of(session_id)]
        return AgentToolResult.of_text("\n".join(rows) or "No jobs.", details={"count": len(rows)})
    if not params.get("job_id"):
        raise ToolError(f"{params['action']} needs job_id")
    job = jobs.get(session_id, params["job_id"])
    if params["action"] == "kill":
        await jobs.kill(job)
    if params.get("offset") is not None:
        return await _read_from(job, params["offset"])
    fresh = job.take_fresh()
    saved = await job.spill.save() if fresh.is_cut else None
    text = shown_excerpt(fresh, saved) or "(no new output)"
    return AgentToolResult.of_text(f"{_state(job)}\n{text}", details=_about(job))


JOBS: Final = ToolDef(
    name="jobs",
    description=(
        "Background commands of this conversation: list them, read the output since the last read "
        "(or from the byte offset), or kill one with its children."
    ),
    parameters=schema(
        ("action",),
        action={"type": "string", "enum": ["list", "read", "kill"]},
        job_id=text_param("For read and kill."),
        offset=int_param("Byte of its output to read from.", minimum=0),
    ),
    execute=_jobs,
    classes=frozenset({"dangerous"}),
)


async def _read_from(job: Job, offset: int) -> AgentToolResult:
    path = await job.spill.save()
    if path is None:
        raise ToolError(f"the output of {job.id} could not be kept: read it without offset")

    def read() -> bytes:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(Excerpt.BYTES)

    data = await anyio.to_thread.run_sync(read)
    end = offset + len(data)
    text = f"{_state(job)}\n{clean(data) or '(nothing there yet)'}\n[Bytes {offset}-{end}.]"
    return AgentToolResult.of_text(text, details=_about(job))


def _row(env: ToolEnv, job: Job) -> str:
    age_s = env.shared.jobs.age_ms(job) // 1_000
    first = (job.command.splitlines() or [""])[0][:100]
    return f"{_state(job)}, {age_s} s old: {first}"


def _state(job: Job) -> str:
    ended = f" with code {job.exit_code}" if job.exit_code is not None else ""
    return f"{job.id} {job.state}{ended}"


def _about(job: Job) -> dict[str, Any]:
    return {"job_id": job.id, "state": job.state, "exit_code": job.exit_code}
