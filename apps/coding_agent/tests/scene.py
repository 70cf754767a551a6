"""The executor against a scripted chat server, with the gateway's own sink."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from coding_agent.app import component
from coding_agent.executor import Executor
from coding_agent.services import Models, services
from lemon_agent.runtime import ModelChoice, model_runtime
from lemon_ai.testing import FakeChatServer, FakeToolCall, Turn
from lemon_core.approvals import ExecApprovals
from lemon_core.bus import Bus
from lemon_core.capabilities import Capabilities
from lemon_core.config.model import Defaults, LemonConfig, Provider, RuntimeSection, Shell
from lemon_core.execution_context import ExecutionContext, Limits, Principal, Provenance, Workspace
from lemon_core.ids import run_id
from lemon_core.introspection import Introspection
from lemon_core.master_key import MasterKeyChain
from lemon_core.paths import PathSettings
from lemon_core.resume import ResumeToken, session_conversation
from lemon_core.runs import Image
from lemon_core.secrets import Secrets
from lemon_core.store import Store
from lemon_core.store.approvals import ExecApprovalStore
from lemon_core.store.chat_state import ChatStateStore
from lemon_core.store.memory import MemoryBackend
from lemon_core.telemetry import Telemetry
from lemon_core.testing import FakeClock, scrubbed_environ
from lemon_core.tool_classes import ToolClassTable
from lemon_core.tool_policy import ToolPolicy
from lemon_gateway.executor import RunHandle, RunOptions, RunSink
from lemon_gateway.requests import (
    EngineAction,
    EngineCompleted,
    EngineDelta,
    EngineStarted,
    ExecutionRequest,
    SinkMessage,
)

SESSION_KEY = "agent:default:main"
NOW_MS = 1_700_000_000_000
T = TypeVar("T")


class FakeRuntime(SimpleNamespace):
    """The attributes of a runtime that this app uses."""

    def service(self, make: Callable[[Any], T]) -> T:
        if make not in self.made:
            self.made[make] = make(self)
        found: T = self.made[make]
        return found


@dataclass
class Live:
    """A run on its way: its control and what it has said so far."""

    handle: RunHandle
    sink: RunSink
    messages: list[SinkMessage] = field(default_factory=list)
    heard: anyio.Event = field(default_factory=anyio.Event)
    is_over: bool = False

    async def play(self) -> None:
        """Await the run as the gateway does, until nothing more comes."""
        assert self.handle.done is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read)
            await self.handle.done
            self.sink.end()
        self.is_over = True

    async def _read(self) -> None:
        while batch := await self.sink.receive_batch():
            self.messages += batch
            self.heard.set()

    async def until(self, found: Callable[[SinkMessage], bool]) -> SinkMessage:
        """The first message like this, waited for."""
        with anyio.fail_after(5):
            while True:
                for message in self.messages:
                    if found(message):
                        return message
                self.heard = anyio.Event()
                await self.heard.wait()

    async def until_delta(self, text: str) -> None:
        await self.until(lambda message: isinstance(message, EngineDelta) and message.text == text)

    @property
    def started(self) -> EngineStarted:
        return next(m for m in self.messages if isinstance(m, EngineStarted))

    @property
    def deltas(self) -> list[str]:
        return [m.text for m in self.messages if isinstance(m, EngineDelta)]

    @property
    def actions(self) -> list[EngineAction]:
        return [m for m in self.messages if isinstance(m, EngineAction)]

    @property
    def completed(self) -> EngineCompleted:
        """The one completion, which is the last message."""
        found = [m for m in self.messages if isinstance(m, EngineCompleted)]
        assert len(found) == 1
        assert self.messages[-1] is found[0]
        return found[0]


@dataclass
class Scene:
    """An executor whose model is a scripted server, and the folder it works in."""

    server: FakeChatServer
    executor: Executor
    runtime: FakeRuntime
    cwd: Path
    agent_dir: Path

    def request(
        self,
        prompt: str = "hello",
        *,
        resume: ResumeToken | None = None,
        policy: ToolPolicy | None = None,
        limits: Limits | None = None,
        images: Sequence[Image] = (),
        session_key: str = SESSION_KEY,
        meta: Mapping[str, object] | None = None,
    ) -> ExecutionRequest:
        run = run_id()
        context = ExecutionContext.root(
            run_id=run,
            session_key=session_key,
            agent_id="default",
            principal=Principal(kind="operator", id="test"),
            provenance=Provenance(origin="test"),
            workspace=Workspace.at(str(self.cwd)),
            capabilities=policy or ToolPolicy.full_access(),
            now_ms=NOW_MS,
            limits=limits,
        )
        return ExecutionRequest(
            run_id=run,
            session_key=session_key,
            prompt=prompt,
            conversation_key=session_conversation(session_key),
            execution_context=context,
            images=tuple(images),
            resume=resume,
            meta=dict(meta or {}),
        )

    async def prepare(self, request: ExecutionRequest) -> Live:
        """A run that has been accepted, but not begun."""
        sink = RunSink()
        options = RunOptions(request.run_id, str(self.cwd))
        return Live(await self.executor.start_run(request, options, sink), sink)

    async def start(self, tasks: TaskGroup, prompt: str = "hello", **kwargs: Any) -> Live:
        """A run that goes on in `tasks`."""
        live = await self.prepare(self.request(prompt, **kwargs))
        tasks.start_soon(live.play)
        return live

    async def run(self, prompt: str = "hello", **kwargs: Any) -> Live:
        """A whole run."""
        live = await self.prepare(self.request(prompt, **kwargs))
        with anyio.fail_after(10):
            await live.play()
        return live

    @property
    def session_files(self) -> list[Path]:
        return sorted(self.agent_dir.glob("sessions/*/*.jsonl"))

    def shown(self, request: int = -1) -> list[tuple[str, str]]:
        """Role and text of the messages that the model was shown."""
        return [
            (message["role"], text_of(message["content"]))
            for message in self.server.requests[request].body["messages"]
        ]


def text_of(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(part.get("text", "[image]") for part in content)


@asynccontextmanager
async def scene(folder: Path, *turns: Turn, **shell: Any) -> AsyncIterator[Scene]:
    """The executor in `folder/work`, with these answers to come."""
    cwd = folder / "work"
    cwd.mkdir(exist_ok=True)
    async with FakeChatServer(turns) as server:
        runtime = fake_runtime(folder, server.base_url, shell)
        await runtime.store.open()
        # type: only the attributes of a runtime are used
        async with runtime.service(model_runtime), component(runtime):  # type: ignore[arg-type]
            yield Scene(
                server,
                Executor(runtime),  # type: ignore[arg-type]
                runtime,
                cwd.resolve(),
                folder / "agent",
            )


def fake_runtime(folder: Path, base_url: str, shell: Mapping[str, Any]) -> FakeRuntime:
    clock, bus, store = FakeClock(now_ms=NOW_MS), Bus(), Store(MemoryBackend())
    environ = scrubbed_environ(folder, {"LEMON_AGENT_DIR": str(folder / "agent")})
    telemetry, introspection = Telemetry(), Introspection(store, clock)
    return FakeRuntime(
        made={},
        config=LemonConfig(
            defaults=Defaults(provider="openai", model="gpt-test"),
            providers={"openai": Provider(base_url=base_url, api_key="key")},
            runtime=RuntimeSection(shell=Shell(**shell)),
        ),
        environ=environ,
        paths=PathSettings(folder),
        clock=clock,
        bus=bus,
        store=store,
        approvals=ExecApprovals(
            ExecApprovalStore(store),
            bus,
            telemetry,
            introspection,
            clock,
            node_id="local",
            is_draining=lambda: False,
        ),
        tool_classes=ToolClassTable(),
        capabilities=Capabilities(),
        chat_states=ChatStateStore(store, clock),
        telemetry=telemetry,
        introspection=introspection,
        secrets=Secrets(store, clock, MasterKeyChain(()), bus, environ),
        cwd=folder,
    )


def tool_turn(name: str, **arguments: Any) -> Turn:
    """An answer that calls one tool."""
    return Turn(tool_calls=[FakeToolCall(name, arguments)])


def stored(here: Scene) -> list[dict[str, Any]]:
    """The messages in the one session file."""
    (path,) = here.session_files
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return [line["message"] for line in lines if line["type"] == "message"]


async def tool_runs(here: Scene) -> None:
    """Wait until the command has said that it is there."""
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync((here.cwd / "ready").read_text)


def phases(live: Live) -> list[tuple[str, str, bool | None]]:
    return [(a.action.title, a.phase, a.ok) for a in live.actions if a.phase != "updated"]


async def models_with(
    here: Scene, changes: Mapping[str, object], notice: str | None = None
) -> Models:
    """The models of the scene, whose default model has something about it changed."""
    real = here.runtime.service(services).models
    choice = await real.choose_model()

    class Changed:
        stream = staticmethod(real.stream)
        get_api_key = staticmethod(real.get_api_key)

        async def choose_model(self, spec: str | None = None) -> ModelChoice:
            return ModelChoice(choice.model.model_copy(update=changes), notice)

    return cast(Models, Changed())
