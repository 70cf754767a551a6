"""`bash`: a command in the workspace, with live output, a time limit and a certain end."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import anyio

from coding_agent.tools.output import SpillFile, Tail
from coding_agent.tools.process import Ending, run_process
from coding_agent.tools.toolset import ToolDef, ToolEnv, schema, text_param
from coding_agent.transcript import INTERRUPTED
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_core.terminal_backends import TerminalPolicy

TERMINAL: Final = "local"
KEEP_BYTES: Final = 50_000
KEEP_LINES: Final = 2_000
UPDATE_BYTES: Final = 4_000
UPDATE_INTERVAL_S: Final = 0.1
MIN_TIMEOUT_MS: Final = 1_000
MAX_TIMEOUT_MS: Final = 600_000

# ECMA-48 sequences (colour, cursor, titles, character sets), then the other control characters.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/][0-~]|[0-OQ-WYZ\\`-~])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def bash_tool(timeout_ms: int) -> ToolDef:
    """The definition, which tells the model the configured time limit."""
    return ToolDef(
        name="bash",
        description=(
            "Run a shell command in the working directory. stdout and stderr come together; the "
            "last 50 KB are shown. What it leaves running is ended with it."
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
        ),
        execute=_bash,
        classes=frozenset({"dangerous"}),
        terminal=TERMINAL,
        exclusive=True,
    )


async def _bash(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    command = call.params["command"]
    _require_allowed(env, command)
    timeout_ms = call.params.get("timeout_ms") or env.shell.timeout_ms
    output = _Output(call, SpillFile(env.spill_dir / "bash", "txt"))
    try:
        ending = await _run(env, command, timeout_ms, output)
    except anyio.get_cancelled_exc_class():
        if not call.signal.aborted:
            raise
        # The loop keeps the result of a tool that was told to stop: the output would be lost.
        details = {"error_type": "aborted", "output": output.text(UPDATE_BYTES)}
        return AgentToolResult.of_text(INTERRUPTED, details=details, is_error=True)
    saved = await output.spill.save() if output.is_cut else None
    return _answer(output, ending, saved, timeout_ms)


async def _run(env: ToolEnv, command: str, timeout_ms: int, output: _Output) -> Ending:
    prefix = env.shell.command_prefix
    failure: OSError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(output.report)
        try:
            ending = await run_process(
                [
                    env.shell.path or default_shell(),
                    "-c",
                    f"{prefix}\n{command}" if prefix else command,
                ],
                cwd=env.guard.cwd,
                environ=env.environ,
                timeout_ms=timeout_ms,
                stdout=output.take,
            )
        except OSError as exc:  # here, because it would leave the group wrapped
            failure = exc
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise ToolError(f"the shell cannot be started: {failure}") from failure
    return ending


class _Output:
    """The output of one command: its tail for the model, all of it for the file, and progress."""

    def __init__(self, call: ToolCallContext, spill: SpillFile) -> None:
        self._call = call
        self._fresh = anyio.Event()
        self.tail = Tail(KEEP_BYTES)
        self.spill = spill

    async def take(self, chunk: bytes) -> None:
        """Add output."""
        self.tail.take(chunk)
        self._fresh.set()
        await self.spill.write(chunk)

    async def report(self) -> None:
        """Show the last lines to whoever watches, so often that the size of the output is moot."""
        while True:
            await self._fresh.wait()
            self._fresh = anyio.Event()
            text = self.text(UPDATE_BYTES)
            self._call.on_update(AgentToolResult.of_text(text, details={"output": text}))
            await anyio.sleep(UPDATE_INTERVAL_S)

    @property
    def is_cut(self) -> bool:
        """Whether the model is not shown everything."""
        return self.tail.total_bytes > KEEP_BYTES or self.tail.line_feeds > KEEP_LINES

    def text(self, size: int = KEEP_BYTES) -> str:
        """The last bytes and lines as plain text."""
        lines = clean(self.tail.last(size)).rstrip("\n").split("\n")
        return "\n".join(lines[-KEEP_LINES:])


def clean(output: bytes) -> str:
    """Output as plain text: no escape sequences, no control characters, no carriage returns."""
    return _CONTROL.sub("", _ESCAPES.sub("", output.decode(errors="replace")))


def default_shell() -> str:
    """bash where there is one, else sh."""
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"


def _require_allowed(env: ToolEnv, command: str) -> None:
    if "\0" in command:
        raise ToolError("the command holds a null character")
    if not TerminalPolicy.from_environ(env.environ).allows(TERMINAL):
        raise ToolError("this machine lets no command run (LEMON_TERMINAL_BACKENDS_ALLOW, _DENY)")
    if env.policy.sandbox:
        raise ToolError("the policy asks for a sandbox, which this installation does not have")
    if not env.policy.command_allowed(command):
        raise ToolError("the policy does not allow this command")
    if env.guard.workspace.read_only:
        raise ToolError("the workspace is read-only for this run, and a shell could write")


def _answer(
    output: _Output, ending: Ending, saved: Path | None, timeout_ms: int
) -> AgentToolResult:
    parts = [output.text() or ("" if ending.exit_code else "(no output)")]
    if saved is not None:
        size = output.tail.total_bytes
        parts.append(f"[The output has {size} bytes. Full output saved to: {saved}]")
    details: dict[str, Any] = {
        "exit_code": ending.exit_code,
        "truncated": output.is_cut,
        "full_output_path": None if saved is None else str(saved),
    }
    if ending.timed_out:
        details |= {"error_type": "timeout", "timeout_ms": timeout_ms}
        parts.insert(0, f"Command timed out after {timeout_ms} ms.")
    elif ending.exit_code:
        parts.append(f"Command exited with code {ending.exit_code}")
    text = "\n".join(filter(None, parts))
    return AgentToolResult.of_text(text, details=details, is_error=ending.timed_out)
