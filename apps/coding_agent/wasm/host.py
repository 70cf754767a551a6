"""WASM tools as the agent sees them, and what the host does for a module that asks.

A module reaches nothing by itself. What it asks for (`lemon.call`) is compared here with its
capabilities and with what the run may do; the smaller of both counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from coding_agent.wasm.manifests import Found, Known, WasmTool, find_tools, wasm_folders
from coding_agent.wasm.pool import WasmFailed, WorkerPool
from coding_agent.wasm.requests import Refused, http_request
from coding_agent.workspace import opened
from lemon_agent import AgentTool, AgentToolResult, ToolCallContext, ToolError
from lemon_agent.arguments import Validator, coerce_arguments
from lemon_core.clock import Clock
from lemon_core.config.tools import Wasm
from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings

if TYPE_CHECKING:
    from coding_agent.tools.toolset import ToolEnv
    from lemon_core.address_guard import AddressGuard
    from lemon_core.secrets import Secrets

MAX_FILE_BYTES: Final = 1_048_576
SEPARATOR: Final = "/wasm/"
NOTHING_FOUND: Final = Found()


@dataclass(frozen=True, slots=True)
class WasmPlaces:
    """Where tools may lie: the agent's folder, and where Lemon was started."""

    paths: PathSettings
    agent_dir: Path
    project: Path
    is_trusted: Callable[[Path], bool]


class WasmTools:
    """One per runtime. `read` gives the settings as they are now; off, it costs a run nothing."""

    def __init__(
        self,
        read: Callable[[], Wasm],
        places: WasmPlaces,
        secrets: Secrets,
        guard: Callable[[], AddressGuard],
        clock: Clock,
    ) -> None:
        self._read, self._places, self._secrets, self._guard = read, places, secrets, guard
        self.pool = WorkerPool(clock)
        self._known: Known = {}

    @property
    def settings(self) -> Wasm:
        """What the configuration says now."""
        return self._read()

    def status(self) -> dict[str, object]:
        """What is told of it in a report."""
        settings = self._read()
        return {
            "enabled": settings.enabled,
            "running": self.pool.is_running,
            "memory_bytes": settings.memory_bytes,
            "timeout_ms": settings.timeout_ms,
            "fuel": settings.fuel,
        }

    async def find(self, cwd: str) -> Found:
        """The tools for work in `cwd`; nothing while they are switched off."""
        settings = self._read()
        if not settings.enabled:
            return NOTHING_FOUND
        places = self._places

        def search() -> Found:
            folders = wasm_folders(
                settings, places.paths, places.agent_dir, places.project, Path(cwd)
            )
            return find_tools(folders, places.is_trusted, places.project, Path(cwd), self._known)

        return await anyio.to_thread.run_sync(search)

    def bound(self, tool: WasmTool, env: ToolEnv) -> AgentTool:
        """The tool of one run."""

        async def execute(call: ToolCallContext) -> AgentToolResult:
            return await self._execute(tool, env, call)

        return AgentTool(
            name=tool.name,
            description=tool.manifest.description,
            parameters=tool.manifest.parameters,
            execute=execute,
            exclusive="dangerous" in tool.classes,
        )

    async def _execute(
        self, tool: WasmTool, env: ToolEnv, call: ToolCallContext
    ) -> AgentToolResult:
        settings = self._read()

        async def answer(request: object) -> object:
            try:
                return {"ok": await self._answer(tool, env, call, request)}
            except (Refused, ToolError, LemonError) as exc:
                return {"error": str(exc)}

        try:
            said = await self.pool.run(tool, call.params, settings, answer)
        except WasmFailed as exc:
            details = {"error_type": f"wasm_{exc.reason}", "tool": tool.name}
            return AgentToolResult.of_text(
                f"{tool.name} failed: {exc}", details=details, is_error=True
            )
        return AgentToolResult.of_text(
            said.text, details={"tool": tool.name}, trust="untrusted", is_error=said.is_error
        )

    # -- what a module may ask for -----------------------------------------------------------

    async def _answer(
        self, tool: WasmTool, env: ToolEnv, call: ToolCallContext, request: object
    ) -> object:
        if not isinstance(request, dict):
            raise Refused("a request is an object with op")
        match request.get("op"):
            case "secret_exists":
                return await self._secret_exists(tool, str(request.get("name", "")))
            case "workspace_read":
                return await self._read_file(tool, env, request.get("path"))
            case "tool_invoke":
                return await self._invoke(tool, env, call, request)
            case "http":
                return await self._http(tool, request)
            case other:
                raise Refused(f"there is no op {other!r}")

    async def _secret_exists(self, tool: WasmTool, name: str) -> bool:
        if name not in tool.manifest.capabilities.secrets:
            raise Refused(f"secret {name!r} is not among the capabilities")
        return await self._secrets.exists(name)

    async def _read_file(self, tool: WasmTool, env: ToolEnv, path: object) -> str:
        allowed = tool.manifest.capabilities.workspace
        real = env.guard.resolve(path)
        shown = env.guard.shown(real)
        # By the resolved path: neither `..` nor a link leads out of what is allowed.
        if allowed is None or not any(_below(shown, prefix) for prefix in allowed.read_prefixes):
            raise Refused(f"{path!r} is not among the capabilities")

        def read() -> bytes:
            with (
                opened(real, os.O_RDONLY | os.O_NONBLOCK) as fd,
                open(fd, "rb", closefd=False) as file,
            ):
                return file.read(MAX_FILE_BYTES + 1)

        try:
            data = await anyio.to_thread.run_sync(read)
        except OSError as exc:
            raise Refused(f"{path}: cannot be read ({exc.strerror})") from exc
        if len(data) > MAX_FILE_BYTES:
            raise Refused(f"{path}: is larger than {MAX_FILE_BYTES >> 20} MiB")
        return data.decode(errors="replace")

    async def _invoke(
        self, tool: WasmTool, env: ToolEnv, call: ToolCallContext, request: Mapping[str, Any]
    ) -> object:
        alias = str(request.get("alias", ""))
        name = tool.manifest.capabilities.tool_invoke.get(alias)
        if name is None:
            raise Refused(f"alias {alias!r} is not among the capabilities")
        depth = call.tool_call_id.count(SEPARATOR) + 1
        if depth > self._read().max_tool_invoke_depth:
            raise Refused(f"tools call each other more than {depth - 1} deep")
        # What the run's policy denies is not there, and what it wants approved asks.
        other = env.siblings.get(name)
        if other is None:
            raise Refused(f"this run has no tool {name}")
        given = request.get("args")
        args = coerce_arguments(given if isinstance(given, dict) else {}, other.parameters)
        if problems := Validator(other.parameters).errors(args):
            raise Refused(f"invalid arguments for {name}: {'; '.join(problems)}")
        nested = f"{call.tool_call_id}{SEPARATOR}{tool.name}"
        result = await other.execute(replace(call, params=args, tool_call_id=nested))
        return {"text": result.text, "is_error": result.is_error}

    async def _http(self, tool: WasmTool, request: Mapping[str, Any]) -> object:
        allowed = tool.manifest.capabilities.http
        if allowed is None:
            raise Refused("http is not among the capabilities")
        auth, token = tool.manifest.auth, None
        if auth is not None:
            token = await self._secrets.fetch_value(auth.secret_name)
        added = {auth.header: f"{auth.prefix}{token}"} if auth is not None and token else {}
        return await http_request(allowed, request, added, self._guard())


def _below(shown: str, prefix: str) -> bool:
    """Whether a path as shown lies at or below a relative prefix."""
    if shown.startswith("/"):
        return False
    wanted = prefix.strip().strip("/").removeprefix("./")
    return wanted in ("", ".") or shown == wanted or shown.startswith(f"{wanted}/")
