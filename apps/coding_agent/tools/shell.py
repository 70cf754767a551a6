"""`bash`: a command in the workspace, with live output, a time limit and a certain end."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from coding_agent.jobs import Launch
from coding_agent.tools.command_paths import Reach, outside_message
from coding_agent.tools.command_text import Unreadable, canonical, inner_line
from coding_agent.tools.live_output import LiveOutput, shown_excerpt
from coding_agent.tools.output import Excerpt, SpillFile
from coding_agent.tools.process import Ending, run_process
from coding_agent.tools.sandbox import sandboxed
from coding_agent.tools.toolset import Question, ToolDef, ToolEnv, bool_param, schema, text_param
from coding_agent.transcript import INTERRUPTED
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_core.terminal_backends import TerminalPolicy

TERMINAL: Final = "local"
PTY_TERMINAL: Final = "local_pty"
FIRST_OUTPUT_S: Final = 1.0
MIN_TIMEOUT_MS: Final = 1_000
MAX_TIMEOUT_MS: Final = 600_000


def bash_tool(timeout_ms: int) -> ToolDef:
    """The definition, which tells the model the configured time limit."""
    return ToolDef(
        name="bash",
        description=(
            "Run a shell command in the working directory. stdout and stderr come together; of "
            "long output head and tail are shown. What it leaves running is ended with it, unless "
            "background=true: then see jobs."
        ),
        parameters=schema(
            ("command",),
            command=text_param("The command line."),
            timeout_ms={
                "type": "integer",
                "minimum": MIN_TIMEOUT_MS,
                "maximum": MAX_TIMEOUT_MS,
                "description": f"Time limit in milliseconds; {timeout_ms} when left out.",
            },
            background=bool_param("Go on in the background as a job, without a time limit."),
            pty=bool_param("Give it a terminal for its output."),
        ),
        execute=_bash,
        classes=frozenset({"dangerous"}),
        terminals=(TERMINAL, PTY_TERMINAL),
        exclusive=True,
        question=question_of,
    )


def question_of(params: Mapping[str, object]) -> Question:
    """What a person is asked about a call, and what a stored grant has to equal.

    That is the command that runs, in one spelling, without the shell that a model put around it.
    A line that cannot be read is asked about each time.
    """
    command = str(params.get("command", ""))
    extra = {"background": True} if params.get("background") else {}
    try:
        line = canonical(inner_line(command))
    except Unreadable:
        return Question({"command": command, **extra}, is_grantable=False)
    return Question({"command": line, **extra})


async def _bash(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    launch = prepared(env, call.params)
    if call.params.get("background"):
        return await _start_job(env, launch)
    timeout_ms = call.params.get("timeout_ms") or env.shell.timeout_ms
    output = LiveOutput(call, SpillFile(launch.spill_dir, "txt"))
    try:
        ending = await _run(launch, timeout_ms, output)
    except anyio.get_cancelled_exc_class():
        if not call.signal.aborted:
            raise
        # The loop keeps the result of a tool that was told to stop: the output would be lost.
        details = {"error_type": "aborted", "output": output.last_lines()}
        return AgentToolResult.of_text(INTERRUPTED, details=details, is_error=True)
    return _answer(output.excerpt, ending, await output.saved(), timeout_ms)


def prepared(env: ToolEnv, params: Mapping[str, Any]) -> Launch:
    """The command as it will be run; raises `ToolError` when it may not be."""
    command, pty = params["command"], bool(params.get("pty"))
    _require_allowed(env, command, PTY_TERMINAL if pty else TERMINAL)
    prefix = env.shell.command_prefix
    script = f"{prefix}\n{command}" if prefix else command
    argv = [env.shell.path or default_shell(), "-c", script]
    if env.policy.sandbox:
        argv = sandboxed(
            argv,
            cwd=env.guard.cwd,
            workspace=env.guard.workspace,
            private_dir=env.shared.private_dir,
            network="external" not in env.policy.deny_classes,
            environ=env.environ,
        )
    return Launch(command, argv, env.guard.cwd, env.environ, env.spill_dir / "bash", pty)


async def _start_job(env: ToolEnv, launch: Launch) -> AgentToolResult:
    identity = env.identity
    job = env.shared.jobs.start(identity.session_id, identity.session_key, launch)
    with anyio.move_on_after(FIRST_OUTPUT_S):
        await job.ended.wait()
    if job.state == "failed":
        raise ToolError(f"the job could not run: {job.problem}")
    fresh = job.take_fresh()
    state = "runs" if job.state == "running" else f"has ended with code {job.exit_code}"
    lines = [f"{job.id} {state}. Read on with jobs.", shown_excerpt(fresh, None)]
    details = {"job_id": job.id, "state": job.state, "exit_code": job.exit_code}
    return AgentToolResult.of_text("\n".join(filter(None, lines)), details=details)


async def _run(launch: Launch, timeout_ms: int, output: LiveOutput) -> Ending:
    failure: OSError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(output.report)
        try:
            ending = await run_process(
                launch.argv,
                cwd=launch.cwd,
                environ=launch.environ,
                timeout_ms=timeout_ms,
                stdout=output.take,
                pty=launch.pty,
            )
        except OSError as exc:  # here, because it would leave the group wrapped
            failure = exc
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise ToolError(f"the shell cannot be started: {failure}") from failure
    return ending


def default_shell() -> str:
    """bash where there is one, else sh."""
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"


def _require_allowed(env: ToolEnv, command: str, terminal: str) -> None:
    if "\0" in command:
        raise ToolError("the command holds a null character")
    if not TerminalPolicy.from_environ(env.environ).allows(terminal):
        raise ToolError("this machine lets no command run (LEMON_TERMINAL_BACKENDS_ALLOW, _DENY)")
    if not _policy_allows(env, command):
        raise ToolError("the policy does not allow this command")
    if env.guard.workspace.read_only and not env.policy.sandbox:
        raise ToolError("the workspace is read-only for this run, and a shell could write")
    outside = Reach(env.guard, env.environ, env.policy.sandbox).outside(command)
    if outside is not None:
        raise ToolError(outside_message(outside, env.guard.workspace.roots))


def _policy_allows(env: ToolEnv, command: str) -> bool:
    """Whether the policy's lists let the line run, or the line without the shells around it."""
    try:
        inner = canonical(inner_line(command))
    except Unreadable:
        return env.policy.command_allowed(command)
    blocks_only = env.policy.model_copy(update={"allowed_commands": None})
    if not (blocks_only.command_allowed(command) and blocks_only.command_allowed(inner)):
        return False
    return env.policy.command_allowed(command) or env.policy.command_allowed(inner)


def _answer(
    excerpt: Excerpt, ending: Ending, saved: Path | None, timeout_ms: int
) -> AgentToolResult:
    parts: Sequence[str] = [
        shown_excerpt(excerpt, saved) or ("" if ending.exit_code else "(no output)")
    ]
    details: dict[str, Any] = {
        "exit_code": ending.exit_code,
        "truncated": excerpt.is_cut,
        "full_output_path": None if saved is None else str(saved),
    }
    if ending.timed_out:
        details |= {"error_type": "timeout", "timeout_ms": timeout_ms}
        parts = [f"Command timed out after {timeout_ms} ms.", *parts]
    elif ending.exit_code:
        parts = [*parts, f"Command exited with code {ending.exit_code}"]
    text = "\n".join(filter(None, parts))
    return AgentToolResult.of_text(text, details=details, is_error=ending.timed_out)
