"""`execute_code`: a Python script, with some of the session's tools as functions.

It is as strong as `bash` and no sandbox: what `bash` may not do here, a script may not either, and
under a policy with `sandbox = true` it runs in the same one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio

from coding_agent.helper_calls import HelperCalls, helper_names
from coding_agent.kernel import Cell, CellEnd, KernelLaunch, kernel_argv
from coding_agent.kernels import KernelKey, NoKernel
from coding_agent.tools.live_output import LiveOutput, shown_excerpt
from coding_agent.tools.output import Excerpt, SpillFile
from coding_agent.tools.sandbox import sandboxed
from coding_agent.tools.toolset import ToolDef, ToolEnv, bool_param, schema, text_param
from coding_agent.transcript import INTERRUPTED
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_core.config.tools import ExecuteCode
from lemon_core.terminal_backends import TerminalPolicy
from lemon_core.util import canonical_json

TERMINAL: Final = "local"
MIN_TIMEOUT_MS: Final = 1_000
HEAD_SHARE: Final = 0.4
MAX_SCRIPT_CHARS: Final = 100_000


def execute_code_tool(settings: ExecuteCode, signatures: Mapping[str, tuple[str, ...]]) -> ToolDef:
    """The definition under these settings; `signatures` are the helpers' names of arguments."""
    helpers = {name: signatures[name] for name in helper_names(settings) if name in signatures}
    keeps = settings.kernel_mode == "session"
    state = "Variables stay for the next call." if keeps else "Nothing stays for the next call."
    called = (
        f" {', '.join(helpers)} are functions in it: arguments as of these tools, text as result, "
        "ToolError when one fails or is refused."
        if helpers
        else ""
    )
    reset = {"reset": bool_param("Begin without what earlier calls left.")} if keeps else {}
    return ToolDef(
        name="execute_code",
        description=f"Run a Python script; only what it prints comes back.{called} {state}",
        parameters=schema(
            ("script",),
            script=text_param("Python source."),
            timeout_ms={
                "type": "integer",
                "minimum": MIN_TIMEOUT_MS,
                "description": f"Time limit in milliseconds; {settings.timeout_ms} at most.",
            },
            **reset,
        ),
        execute=partial(_execute_code, settings, helpers),
        classes=frozenset({"dangerous"}),
        terminals=(TERMINAL,),
        exclusive=True,
    )


async def _execute_code(
    settings: ExecuteCode,
    helpers: Mapping[str, tuple[str, ...]],
    env: ToolEnv,
    call: ToolCallContext,
) -> AgentToolResult:
    script = call.params["script"]
    python = settings.python_path or sys.executable
    _require_allowed(env, script, python)
    launch = _launch(env, python, helpers)
    limit_ms = min(call.params.get("timeout_ms") or settings.timeout_ms, settings.timeout_ms)
    spill = SpillFile(env.spill_dir / "execute_code", "txt")
    limit = settings.max_output_bytes
    output = LiveOutput(call, spill, Excerpt(limit, int(limit * HEAD_SHARE)))
    calls = HelperCalls(call, env.siblings, settings)
    run = _Run(env, settings, python, launch, Cell(script, output.take, calls))
    began_ms = env.shared.kernels.now_ms()
    try:
        end = await _within(limit_ms, run, output, reset=bool(call.params.get("reset")))
    except anyio.get_cancelled_exc_class():
        if not call.signal.aborted:
            raise
        # The loop keeps the result of a tool that was told to stop: the output would be lost.
        aborted = {"error_type": "aborted", "output": output.last_lines()}
        return AgentToolResult.of_text(INTERRUPTED, details=aborted, is_error=True)
    saved = await output.saved()
    details: dict[str, Any] = {
        "exit_code": None if end is None else end.exit_code,
        "truncated": output.excerpt.is_cut,
        "full_output_path": None if saved is None else str(saved),
        **calls.details(),
        **run.details(env.shared.kernels.now_ms() - began_ms, end),
    }
    text = shown_excerpt(output.excerpt, saved)
    return _answer(text, details, end, limit_ms, is_foreign=calls.has_foreign)


@dataclass(slots=True)
class _Run:
    """One script on its way: in the conversation's kernel, or in one of its own."""

    env: ToolEnv
    settings: ExecuteCode
    python: str
    launch: KernelLaunch
    cell: Cell
    was_reused: bool = False
    was_reset: bool = False
    fallback: str | None = None

    @property
    def is_kept(self) -> bool:
        return self.settings.kernel_mode == "session" and self.fallback is None

    async def to_its_end(self, *, reset: bool) -> CellEnd:
        """Run it; code that has begun is never begun again."""
        kernels, identity = self.env.shared.kernels, self.env.identity
        if not self.is_kept:
            return await kernels.run_once(self.launch, self.cell)
        key = KernelKey.of(
            identity.session_id, identity.agent_id, self.python, self.launch, _rights(self.env)
        )
        try:
            kept = await kernels.run_kept(
                key, self.cell, self.settings, session_key=identity.session_key, reset=reset
            )
        except NoKernel as exc:
            self.fallback = exc.reason
            return await kernels.run_once(self.launch, self.cell)
        self.was_reused, self.was_reset = kept.was_reused, kept.was_reset
        return kept.end

    def details(self, duration_ms: int, end: CellEnd | None) -> dict[str, Any]:
        """What the result says about the kernel, where one can be kept."""
        if self.settings.kernel_mode != "session":
            return {}
        return {
            "persistent": self.is_kept,
            "kernel_reused": self.was_reused,
            "reset_performed": self.was_reset,
            "state_retained": self.is_kept and end is not None and not end.is_lost,
            "duration_ms": duration_ms,
            "fallback_reason": self.fallback,
        }


async def _within(limit_ms: int, run: _Run, output: LiveOutput, *, reset: bool) -> CellEnd | None:
    """How the script ended; None when its time was over, its turn included."""
    end: CellEnd | None = None
    failure: ToolError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(output.report)
        try:
            with anyio.move_on_after(limit_ms / 1000):
                end = await run.to_its_end(reset=reset)
        except ToolError as exc:  # here, because it would leave the group wrapped
            failure = exc
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return end


def _require_allowed(env: ToolEnv, script: str, python: str) -> None:
    if "\0" in script or len(script) > MAX_SCRIPT_CHARS:
        raise ToolError(f"a script has at most {MAX_SCRIPT_CHARS} characters, and no null ones")
    if not TerminalPolicy.from_environ(env.environ).allows(TERMINAL):
        raise ToolError("this machine lets no command run (LEMON_TERMINAL_BACKENDS_ALLOW, _DENY)")
    # A script can start any program, so that whoever may run only some may not run this.
    if env.policy.blocked_commands or not env.policy.command_allowed(python):
        raise ToolError("the policy allows only some commands, and a script could run any")
    if env.guard.workspace.read_only and not env.policy.sandbox:
        raise ToolError("the workspace is read-only for this run, and a script could write")


def _rights(env: ToolEnv) -> bytes:
    workspace = env.guard.workspace
    return canonical_json([env.policy.dump(), list(workspace.roots), workspace.read_only])


def _launch(env: ToolEnv, python: str, helpers: Mapping[str, tuple[str, ...]]) -> KernelLaunch:
    argv = kernel_argv(python)
    if env.policy.sandbox:
        argv = tuple(
            sandboxed(
                argv,
                cwd=env.guard.cwd,
                workspace=env.guard.workspace,
                private_dir=env.shared.private_dir,
                network="external" not in env.policy.deny_classes,
                environ=env.environ,
            )
        )
    return KernelLaunch(argv, env.guard.cwd, tuple(helpers.items()), env.environ)


def _answer(
    text: str, details: dict[str, Any], end: CellEnd | None, limit_ms: int, *, is_foreign: bool
) -> AgentToolResult:
    parts = [text]
    if end is None:
        details |= {"error_type": "timeout", "timeout_ms": limit_ms}
        parts = [f"Script timed out after {limit_ms} ms.", text]
    elif end.is_lost:
        details |= {"error_type": "kernel_ended"}
        parts = [text, "The Python process ended in the middle of the script."]
    elif end.exit_code:
        parts = [text, f"Script exited with code {end.exit_code}"]
    return AgentToolResult.of_text(
        "\n".join(filter(None, parts)) or "(no output)",
        details=details,
        trust="untrusted" if is_foreign else "trusted",
        is_error=end is None or end.is_lost,
    )
