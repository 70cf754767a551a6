"""`tool_auth`: whether a WASM tool has the token that it needs; one in its variable is stored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from coding_agent.tools.toolset import ToolDef, ToolEnv, schema, text_param
from coding_agent.wasm.host import WasmTools
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_core.secrets import Secrets


def wasm_tools(
    wasm: WasmTools, secrets: Secrets, environ: Mapping[str, str]
) -> tuple[ToolDef, ...]:
    """The definition, where WASM tools are switched on when the runtime starts."""
    if not wasm.settings.enabled:
        return ()
    return (
        ToolDef(
            name="tool_auth",
            description="See whether a WASM tool has its token, and take it from its variable.",
            parameters=schema(("name",), name=text_param("The tool.")),
            execute=partial(_tool_auth, wasm, secrets, environ),
            classes=frozenset({"dangerous"}),
            exclusive=True,
        ),
    )


async def _tool_auth(
    wasm: WasmTools,
    secrets: Secrets,
    environ: Mapping[str, str],
    env: ToolEnv,
    call: ToolCallContext,
) -> AgentToolResult:
    name = str(call.params["name"])
    found = {tool.name: tool for tool in (await wasm.find(str(env.guard.cwd))).tools}
    tool = found.get(name)
    if tool is None:
        raise ToolError(f"there is no WASM tool {name!r}; there are: {', '.join(found) or 'none'}")
    auth = tool.manifest.auth
    if auth is None:
        return _told("no_auth", f"{name} needs no token.")
    if await secrets.exists(auth.secret_name):
        return _told("authenticated", f"{name} has its token.")
    if auth.env_var is not None and environ.get(auth.env_var, "").strip():
        await secrets.import_from_env(auth.secret_name, auth.env_var)
        return _told("authenticated", f"{name} has its token now, from {auth.env_var}.")
    ways = f"lemon secrets set {auth.secret_name}"
    ways = f"{ways}, or set {auth.env_var} and restart Lemon" if auth.env_var else ways
    text = f"{name} waits for its token: {ways}. {auth.instructions}".strip()
    return _told("awaiting_token", text)


def _told(status: str, text: str) -> AgentToolResult:
    return AgentToolResult.of_text(text, details={"status": status})
