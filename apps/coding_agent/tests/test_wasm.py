"""Tools compiled to WebAssembly (specification coding_agent 9)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import wasmtime

from coding_agent.tests.extension_files import Place
from coding_agent.tests.harness import details, lives, tool_env
from coding_agent.tests.scene import scene, text_of, tool_turn
from coding_agent.tests.web_server import serving
from coding_agent.tools.tool_auth import wasm_tools
from coding_agent.tools.toolset import ToolEnv
from coding_agent.wasm.manifests import WasmTool
from lemon_agent import AbortSignal, AgentTool, AgentToolResult, ToolCallContext, ToolError
from lemon_agent.tool_registry import ToolOptions
from lemon_ai.testing import Turn
from lemon_core.address_guard import AddressGuard
from lemon_core.config.model import LemonConfig
from lemon_core.config.tools import Wasm
from lemon_core.config.trust import TrustedProjects

pytestmark = pytest.mark.anyio

GUIDE = "docs/wasm_tools.md"
ROOM = """
  (memory (export "memory") 2)
  (global $next (mut i32) (i32.const 65536))
  (func (export "alloc") (param $size i32) (result i32) (local $at i32)
    (local.set $at (global.get $next))
    (global.set $next (i32.add (global.get $next) (local.get $size))) (local.get $at))
"""
# What it is given goes to the host, and the host's answer is the result.
ASKING = f"""(module
  (import "lemon" "call" (func $call (param i32 i32) (result i64))){ROOM}
  (func (export "run") (param i32 i32) (result i64) (call $call (local.get 0) (local.get 1))))"""
SPINNING = f"""(module{ROOM}
  (func (export "run") (param i32 i32) (result i64) (loop $on (br $on)) (i64.const 0)))"""
GROWING = f"""(module{ROOM}
  (func (export "run") (param i32 i32) (result i64)
    (if (i32.lt_s (memory.grow (i32.const 1000)) (i32.const 0)) (then unreachable))
    (i64.const 0)))"""
ODD = f"""(module{ROOM} (func (export "run") (param i32 i32) (result i64) (i64.const -1)))"""
NO_ROOM = """(module (memory (export "memory") 1)
  (func (export "run") (param i32 i32) (result i64) (i64.const 0)))"""
SYSTEM = f"""(module
  (import "wasi_snapshot_preview1" "proc_exit" (func (param i32))){ROOM})"""


def guide() -> str:
    root = next(folder for folder in Path(__file__).parents if (folder / GUIDE).is_file())
    return (root / GUIDE).read_text("utf-8")


def write_tool(folder: Path, name: str, wat: str, **manifest: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.wasm"
    path.write_bytes(bytes(wasmtime.wat2wasm(wat)))
    (folder / f"{name}.capabilities.json").write_text(json.dumps(manifest))
    return path


@dataclass
class Here:
    place: Place
    folder: Path
    env: ToolEnv

    async def tool(self, name: str) -> WasmTool:
        found = await self.place.wasm.find(str(self.env.guard.cwd))
        return next(each for each in found.tools if each.name == name)

    async def call(self, called: str, /, **params: Any) -> AgentToolResult:
        tool = self.place.wasm.bound(await self.tool(called), self.env)
        context = ToolCallContext("call_1", params, AbortSignal(), lambda _: None)
        with anyio.fail_after(20):
            return await tool.execute(context)


@asynccontextmanager
async def wasm(folder: Path, **settings: Any) -> AsyncIterator[Here]:
    """WASM tools in the agent's folder of `folder`."""
    place = Place(folder)
    place.wasm_settings = Wasm(enabled=True, **settings)
    (folder / "project").mkdir()
    await place.store.open()
    async with place.wasm.pool.running():
        env = tool_env(folder / "project")
        yield Here(place, folder / "agent" / "wasm-tools", env)
    assert not place.wasm.pool.is_running


async def test_the_tool_of_the_guide_works(tmp_path: Path) -> None:
    """In a whole run, with the process of the tool gone afterwards."""
    (wat,) = re.findall(r"```wat\n(.*?)```", guide(), re.DOTALL)
    first, *_ = re.findall(r"```json\n(.*?)```", guide(), re.DOTALL)
    turns = (
        tool_turn("repeat", text="wasser"),
        tool_turn("repeat"),
        tool_turn("extensions_status", action="status"),
        Turn(text="x"),
    )
    async with scene(tmp_path, *turns) as here:
        write_tool(here.agent_dir / "wasm-tools", "repeat", wat, **json.loads(first))
        config: LemonConfig = here.runtime.config
        tools = config.runtime.tools.model_copy(update={"wasm": Wasm(enabled=True)})
        runtime = config.runtime.model_copy(update={"tools": tools})
        here.runtime.config = config.model_copy(update={"runtime": runtime})
        live = await here.run()
        assert live.completed.ok
        said = [
            text_of(message["content"])
            for message in here.server.requests[-1].body["messages"]
            if message["role"] == "tool"
        ]
        assert "wasser" in said[0]
        # Text from outside is marked as such on its way to the model.
        assert "EXTERNAL" in said[0].upper()
        assert "Invalid arguments for tool repeat" in said[1]
        asked = here.runtime.capabilities.get("agent_runtime")
        assert asked.wasm_sidecar_running()
        conflicts = await asked.tool_conflicts(str(here.cwd))
        assert (conflicts["counts"]["wasm"], conflicts["wasm"]["running"]) == (1, True)
    assert not asked.wasm_sidecar_running()


async def test_switched_off_no_folder_is_looked_at(tmp_path: Path) -> None:
    async with wasm(tmp_path) as here:
        write_tool(here.folder, "asking", ASKING)
        here.place.wasm_settings = Wasm()
        assert (await here.place.wasm.find(str(tmp_path))).tools == ()


async def test_a_tool_is_read_again_only_when_its_files_have_changed(tmp_path: Path) -> None:
    async with wasm(tmp_path) as here:
        write_tool(here.folder, "asking", ASKING, description="One.")
        first = await here.tool("asking")
        assert await here.tool("asking") is first
        write_tool(here.folder, "asking", ASKING, description="Another.")
        assert (await here.tool("asking")).manifest.description == "Another."


async def test_a_projects_tools_need_trust(tmp_path: Path) -> None:
    """DESIGN ruling 40: untrusted, they are listed and not loaded."""
    async with wasm(tmp_path, tool_paths=["theirs"]) as here:
        project = tmp_path / "project"
        write_tool(project / ".lemon" / "wasm-tools", "inner", ASKING)
        write_tool(project / "theirs", "relative", ASKING)
        found = await here.place.wasm.find(str(project))
        assert found.tools == ()
        assert {row["name"] for row in found.not_loaded} == {"inner", "relative"}
        assert found.not_loaded[0]["reason"].endswith(f"lemon config trust {project}")
        here.place.trusted.add(project)
        found = await here.place.wasm.find(str(project))
        assert [each.name for each in found.tools] == ["inner", "relative"]
        trusted = TrustedProjects(here.place.wasm._places.paths)
        assert not trusted.is_trusted(project)


@pytest.mark.parametrize(
    ("wat", "reason", "words"),
    [
        (SPINNING, "fuel", "used up its fuel"),
        (GROWING, "trap", "unreachable"),
        (ODD, "abi", "outside of the memory"),
        (NO_ROOM, "abi", "exports no function alloc"),
        ("(module)", "abi", "exports no memory"),
        (SYSTEM, "imports", "wants wasi_snapshot_preview1.proc_exit"),
    ],
)
async def test_a_module_that_breaks_a_limit_or_a_rule_fails_alone(
    tmp_path: Path, wat: str, reason: str, words: str
) -> None:
    async with wasm(tmp_path) as here:
        write_tool(here.folder, "bad", wat)
        write_tool(here.folder, "asking", ASKING)
        result = await here.call("bad")
        assert result.is_error
        assert details(result)["error_type"] == f"wasm_{reason}"
        assert words in result.text
        # The process goes on with the next call.
        assert (await here.call("asking", op="x")).text == "there is no op 'x'"


async def test_more_memory_than_the_limit_is_not_given_at_the_start_either(tmp_path: Path) -> None:
    async with wasm(tmp_path, memory_bytes=65_536) as here:
        write_tool(here.folder, "big", ASKING)
        result = await here.call("big")
        assert details(result)["error_type"] == "wasm_memory"


async def test_what_is_no_module_and_what_says_odd_things_is_told(tmp_path: Path) -> None:
    async with wasm(tmp_path) as here:
        write_tool(here.folder, "broken", ASKING).write_bytes(b"\0asm nonsense")
        write_tool(here.folder, "odd", ASKING, capabilities={"files": True})
        write_tool(here.folder, "other", ASKING, auth={"secret_name": "llm_openai_api_key"})
        lent = {"secret_name": "wasm_keys", "env_var": "OPENAI_API_KEY"}
        write_tool(here.folder, "keys", ASKING, auth=lent)
        write_tool(here.folder, "Bad-Name", ASKING)
        write_tool(here.folder, "flat", ASKING, parameters={"type": "string"})
        found = await here.place.wasm.find(str(tmp_path))
        assert [each.name for each in found.tools] == ["broken"]
        told = {row["name"]: row["error"] for row in found.problems}
        assert "capabilities.files: Extra inputs" in told["odd"]
        assert told["other"] == "auth.secret_name: must begin with wasm_other"
        assert told["keys"] == "auth.env_var: OPENAI_API_KEY belongs to Lemon"
        assert "small letters" in told["Bad-Name"]
        assert "are no schema of" in told["flat"]
        assert details(await here.call("broken"))["error_type"] == "wasm_module"


async def test_a_late_call_is_cut_off_with_its_process(tmp_path: Path) -> None:
    async with wasm(tmp_path, fuel=2**53 - 1) as here:
        write_tool(here.folder, "spinning", SPINNING)
        pool = here.place.wasm.pool
        results: list[AgentToolResult] = []

        async def call() -> None:
            results.append(await here.call("spinning"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            with anyio.fail_after(5):
                while not pool.is_running:
                    await anyio.lowlevel.checkpoint()
            (worker,) = pool._living
            await here.place.clock.advance(60_000)
        assert details(results[0])["error_type"] == "wasm_timeout"
        assert not pool.is_running
        assert not lives(worker.process.pid)


# -- what a module may ask for -------------------------------------------------------------------


async def answers(here: Here, **request: Any) -> Any:
    """What a module that may do nothing else is told."""
    return json.loads((await here.call("asking", **request)).text)


async def test_without_capabilities_everything_is_denied(tmp_path: Path) -> None:
    async with wasm(tmp_path) as here:
        write_tool(here.folder, "asking", ASKING)
        for request in (
            {"op": "http", "url": "https://example.com/"},
            {"op": "secret_exists", "name": "x"},
            {"op": "workspace_read", "path": "a.txt"},
            {"op": "tool_invoke", "alias": "bash", "args": {}},
        ):
            result = await here.call("asking", **request)
            assert result.is_error, request
            assert "not among the capabilities" in result.text
        assert (await here.call("asking", op="exec")).text == "there is no op 'exec'"
        assert (await here.call("asking")).trust == "untrusted"


async def test_files_are_read_below_the_prefixes_and_inside_the_workspace(tmp_path: Path) -> None:
    async with wasm(tmp_path) as here:
        can = {"workspace": {"read_prefixes": ["docs"]}}
        write_tool(here.folder, "asking", ASKING, capabilities=can)
        project = tmp_path / "project"
        (project / "docs").mkdir()
        (project / "docs" / "a.txt").write_text("hello")
        (project / "docsecret").write_text("no")
        (tmp_path / "outside").write_text("no")
        (project / "docs" / "link").symlink_to(project / "docsecret")
        (project / "docs" / "out").symlink_to(tmp_path / "outside")
        assert await answers(here, op="workspace_read", path="docs/a.txt") == {"ok": "hello"}
        for path in ("docsecret", "docs/../docsecret", "docs/link", "docs/out", "docs", ""):
            assert (await here.call("asking", op="workspace_read", path=path)).is_error, path


async def test_a_secret_is_told_to_exist_and_never_its_value(tmp_path: Path) -> None:
    async with wasm(tmp_path) as here:
        write_tool(here.folder, "asking", ASKING, capabilities={"secrets": ["weather"]})
        assert await answers(here, op="secret_exists", name="weather") == {"ok": False}


async def test_another_tool_is_called_as_the_run_may_and_not_too_deep(tmp_path: Path) -> None:
    calls: list[str] = []

    async def execute(call: ToolCallContext) -> AgentToolResult:
        calls.append(call.tool_call_id)
        return AgentToolResult.of_text(f"said {call.params}")

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with wasm(tmp_path, max_tool_invoke_depth=2) as here:
        can = {"tool_invoke": {"count": "counter", "again": "asking", "shell": "bash"}}
        write_tool(here.folder, "asking", ASKING, capabilities=can)
        siblings = {"counter": AgentTool("counter", "", schema, execute)}
        here.env = replace(here.env, siblings=siblings)
        siblings["asking"] = here.place.wasm.bound(await here.tool("asking"), here.env)
        said = await answers(here, op="tool_invoke", alias="count", args={"n": "3"})
        assert said == {"ok": {"text": "said {'n': 3}", "is_error": False}}
        assert calls == ["call_1/wasm/asking"]
        wrong = await here.call("asking", op="tool_invoke", alias="count", args={})
        assert "invalid arguments for counter" in wrong.text
        # The policy of the run has no bash.
        denied = await here.call("asking", op="tool_invoke", alias="shell", args={})
        assert denied.text == "this run has no tool bash"
        deeper: dict[str, Any] = {"op": "tool_invoke", "alias": "count", "args": {"n": 1}}
        for _ in range(2):
            deeper = {"op": "tool_invoke", "alias": "again", "args": deeper}
        said = await answers(here, **deeper)
        assert "more than 2 deep" in json.dumps(said)


async def test_requests_go_where_they_may_with_a_token_that_the_module_never_sees(
    tmp_path: Path,
) -> None:
    async with wasm(tmp_path) as here, serving() as site:
        site.pages["/v1/now"] = {"sunny": True}
        allow = [{"host": "127.0.0.1", "scheme": "http", "port": site.port, "path_prefix": "/v1"}]
        write_tool(
            here.folder,
            "asking",
            ASKING,
            capabilities={"http": {"allow": allow}},
            auth={"secret_name": "wasm_asking", "env_var": "ASKING_TOKEN"},
        )
        url = site.url("/v1/now")
        refused = await here.call("asking", op="http", url=url)
        assert "127.0.0.1" in refused.text
        assert site.requests == []

        async def token(_: str) -> str:
            return "hidden"

        here.place.wasm._guard = lambda: AddressGuard(_loopback, allow_private=True)
        here.place.wasm._secrets.fetch_value = token  # type: ignore[method-assign, assignment]
        sent = {"Authorization": "mine", "X-Mine": "1", "Host": "evil"}
        said = await answers(here, op="http", url=url, headers=sent)
        assert (said["ok"]["status"], json.loads(said["ok"]["body"])) == (200, {"sunny": True})
        headers = site.requests[0][1]
        assert (headers["Authorization"], headers["X-Mine"]) == ("Bearer hidden", "1")
        assert headers["Host"].startswith("127.0.0.1")
        assert "hidden" not in json.dumps(said)
        for other in (
            {"url": site.url("/v2/now")},
            {"url": site.url("/v1x")},
            {"url": site.url("/v1/../v2")},
            {"url": site.url("/v1/%2e%2e/v2")},
            {"url": url, "method": "POST"},
            {"url": url.replace(f":{site.port}", f":{site.port + 1}")},
            {"url": url.replace("http:", "https:")},
            {"url": url, "headers": {"a\r\nb": "c"}},
        ):
            assert (await here.call("asking", op="http", **other)).is_error, other
        assert len(site.requests) == 1


async def _loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_classes_and_approvals_follow_the_capabilities(tmp_path: Path) -> None:
    async with wasm(tmp_path) as here:
        can: Mapping[str, Mapping[str, Any]] = {
            "bare": {},
            "harmless": {"classes": []},
            "reaching": {"classes": [], "capabilities": {"http": {}}},
            "calling": {"classes": [], "capabilities": {"tool_invoke": {"a": "b"}}},
        }
        for name, manifest in can.items():
            write_tool(here.folder, name, ASKING, **manifest)
        tools = await here.place.foreign().of(str(tmp_path), ToolOptions(), ())
        classes = here.place.table.classes
        assert {each.name: (sorted(classes(each.name)), each.asks) for each in tools} == {
            "bare": (["dangerous", "external"], False),
            "harmless": ([], False),
            "reaching": (["external"], True),
            "calling": (["dangerous"], True),
        }


async def test_tool_auth_tells_who_waits_for_a_token(tmp_path: Path) -> None:
    async with wasm(tmp_path) as here:
        auth = {"secret_name": "wasm_waiting", "env_var": "WAITING_TOKEN", "instructions": "Ask."}
        write_tool(here.folder, "waiting", ASKING, auth=auth)
        write_tool(here.folder, "free", ASKING)
        secrets, environ = here.place.wasm._secrets, {"WAITING_TOKEN": " "}
        (tool,) = wasm_tools(here.place.wasm, secrets, environ)
        bound = tool.bind(here.env)

        async def asked(name: str) -> AgentToolResult:
            context = ToolCallContext("c", {"name": name}, AbortSignal(), lambda _: None)
            return await bound.execute(context)

        assert details(await asked("free")) == {"status": "no_auth"}
        waits = await asked("waiting")
        assert details(waits) == {"status": "awaiting_token"}
        assert "lemon secrets set wasm_waiting, or set WAITING_TOKEN" in waits.text
        with pytest.raises(ToolError, match="there are: free, waiting"):
            await asked("nobody")

        stored: list[tuple[str, str | None]] = []

        async def import_from_env(name: str, env_name: str | None = None) -> None:
            stored.append((name, env_name))

        secrets.import_from_env = import_from_env  # type: ignore[method-assign, assignment]
        environ["WAITING_TOKEN"] = "token"
        assert details(await asked("waiting")) == {"status": "authenticated"}
        assert stored == [("wasm_waiting", "WAITING_TOKEN")]
    assert tool.classes == {"dangerous"}
    place = Place(tmp_path)
    assert wasm_tools(place.wasm, secrets, {}) == ()
