"""What the gateway's tests share: requests, a scripted executor and a worker's partners."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel

from lemon_core.approvals import ExecApprovals
from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.events import Completion, Event, RunCompleted
from lemon_core.execution_context import ExecutionContext, Principal, Provenance, Workspace
from lemon_core.introspection import Introspection
from lemon_core.paths import PathSettings
from lemon_core.resume import ConversationKey, ResumeToken, session_conversation
from lemon_core.runs import ExecutionCommand
from lemon_core.store import (
    ChatStateStore,
    ProgressStore,
    RunStore,
    Store,
    StoreSettings,
    open_store,
)
from lemon_core.store.approvals import ExecApprovalStore
from lemon_core.telemetry import Telemetry
from lemon_core.testing import FakeClock
from lemon_core.tool_policy import ToolPolicy
from lemon_gateway.config import GatewaySettings
from lemon_gateway.executor import ConfiguredExecutor, RunHandle, RunOptions, Sink, SteerResult
from lemon_gateway.requests import (
    EngineCompleted,
    EngineDelta,
    EngineStarted,
    ExecutionRequest,
    SinkMessage,
)
from lemon_gateway.runtime import Runtime

SESSION = "agent:default:main"
NOW_MS = 1_700_000_000_000
PEER_ROOT = "/tmp"
"""Where runs of peers on other machines may work."""


async def settle() -> None:
    """Let every task run until it waits for something that only the test can give."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


def context(
    run_id: str, session_key: str = SESSION, *, workspace: Workspace | None = None
) -> ExecutionContext:
    """The authority of a run that may do everything below `/tmp`."""
    return ExecutionContext.root(
        run_id=run_id,
        session_key=session_key,
        agent_id="default",
        principal=Principal(kind="operator", id="test"),
        provenance=Provenance(origin="test"),
        workspace=workspace or Workspace.at(PEER_ROOT),
        capabilities=ToolPolicy.full_access(),
        now_ms=NOW_MS,
    )


def command(
    run_id: str,
    prompt: str = "hello",
    *,
    session_key: str = SESSION,
    conversation: ConversationKey | None = None,
    resume: ResumeToken | None = None,
    cwd: str | None = None,
    workspace: Workspace | None = None,
    meta: Mapping[str, object] | None = None,
) -> ExecutionCommand:
    """A complete command."""
    return ExecutionCommand(
        run_id=run_id,
        session_key=session_key,
        prompt=prompt,
        conversation_key=conversation or session_conversation(session_key),
        execution_context=context(run_id, session_key, workspace=workspace),
        resume=resume,
        cwd=cwd,
        meta=dict(meta or {}),
    )


def request(run_id: str, **kwargs: object) -> ExecutionRequest:
    """The request of `command(run_id, ...)`."""
    return ExecutionRequest.from_command(command(run_id, **kwargs))  # type: ignore[arg-type]


@dataclass
class Control:
    """What a scripted run is steered by."""

    run_id: str
    ref: str
    request: ExecutionRequest
    options: RunOptions
    sink: Sink
    cancels: int = 0
    steers: list[str] = field(default_factory=list)
    redirects: list[str] = field(default_factory=list)

    async def started(self, token: str | None = None) -> None:
        """Say that the session is open."""
        resume = ResumeToken(engine="lemon", value=token) if token else None
        await self.sink.send(EngineStarted(self.ref, resume, title="test"))

    async def say(self, *texts: str) -> None:
        """Stream text."""
        for text in texts:
            await self.sink.send(EngineDelta(self.ref, text))

    async def complete(
        self,
        answer: str | None = None,
        *,
        ok: bool = True,
        error: str | dict[str, object] | None = None,
        token: str | None = None,
        engine: str = "lemon",
    ) -> None:
        """End the run."""
        resume = ResumeToken(engine=engine, value=token) if token else None
        await self.sink.send(EngineCompleted(self.ref, ok, answer, error, resume))


Script = Callable[[Control], Awaitable[object]]


class ScriptedExecutor:
    """Speaks the executor's protocol; a test decides what each run says.

    Without a script a run waits for the test, which gets its `Control` from `run(run_id)`. A script
    is awaited inside `start_run`, so it must only send what the sink holds.
    """

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.controls: dict[str, Control] = {}
        self.order: list[str] = []
        self.steer_result: SteerResult = "ok"
        self.redirect_result: SteerResult = "ok"
        self.done: Callable[[Control], Awaitable[object]] | None = None
        self._arrived = anyio.Event()

    async def run(self, run_id: str) -> Control:
        """The control of `run_id`, as soon as it was started."""
        while run_id not in self.controls:
            await self._arrived.wait()
        return self.controls[run_id]

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        control = Control(request.run_id, f"ref-{request.run_id}", request, opts, sink)
        self.controls[request.run_id] = control
        self.order.append(request.run_id)
        arrived, self._arrived = self._arrived, anyio.Event()
        arrived.set()
        if self.script is not None:
            await self.script(control)
        return RunHandle(control.ref, control, self.done(control) if self.done else None)

    async def cancel(self, control: object) -> None:
        assert isinstance(control, Control)
        control.cancels += 1

    async def steer(self, control: object, text: str) -> SteerResult:
        assert isinstance(control, Control)
        control.steers.append(text)
        return self.steer_result

    async def redirect(self, control: object, text: str) -> SteerResult:
        assert isinstance(control, Control)
        control.redirects.append(text)
        return self.redirect_result


async def answer_hello(control: Control) -> None:
    """A whole run in two deltas."""
    await control.started("sess_1")
    await control.say("hel", "lo")
    await control.complete(token="sess_1")


def twenty_tokens(ref: str) -> list[SinkMessage]:
    """The messages of a run of twenty tokens."""
    token = ResumeToken(engine="lemon", value="sess_1")
    return [
        EngineStarted(ref, token),
        *(EngineDelta(ref, f"token {number} ") for number in range(20)),
        EngineCompleted(ref, True, resume=token),
    ]


class GivenExecutor(ScriptedExecutor):
    """What a profile names in these tests: building it gives the executor that was passed in."""

    def __new__(cls, given: ScriptedExecutor) -> ScriptedExecutor:  # type: ignore[misc]
        return given


GIVEN = "lemon_gateway.tests.fakes:GivenExecutor"


@dataclass
class Gateway:
    """A running gateway and what stands around it."""

    runtime: Runtime
    executor: ScriptedExecutor
    bus: Bus
    store: Store
    records: RunStore
    chat_states: ChatStateStore
    progress: ProgressStore
    approvals: ExecApprovals
    clock: Clock
    telemetry: Telemetry
    emitted: list[tuple[str, Mapping[str, float], Mapping[str, object]]]

    def numbers(self, name: str) -> list[Mapping[str, float]]:
        """The measurements of every telemetry event called `name`."""
        return [measured for emitted, measured, _ in self.emitted if emitted == name]

    async def events(self, run_id: str, after_seq: int = 0) -> list[Event]:
        """The events of a run to its end, as a subscriber in the process gets them."""
        async with aclosing(self.runtime.subscribe(run_id, after_seq)) as items:
            return [item async for item in items if isinstance(item, Event)]

    async def end(self, run_id: str) -> Completion:
        """How a run ended, as soon as it has."""
        events = await self.events(run_id)
        payload = events[-1].payload
        assert isinstance(payload, RunCompleted)
        return payload.completed


@asynccontextmanager
async def running_gateway(
    executor: ScriptedExecutor | None = None,
    *,
    clock: Clock | None = None,
    store: Store | None = None,
    records: Callable[[Store, Clock], RunStore] = RunStore,
    settings: GatewaySettings | None = None,
    path: str | None = GIVEN,
    home: Path = Path("/tmp"),
) -> AsyncIterator[Gateway]:
    """A gateway over a store in memory (or `store`), driven by `executor`."""
    used = executor or ScriptedExecutor()
    time = clock or FakeClock(NOW_MS)
    async with AsyncExitStack() as stack:
        if store is None:
            store = await stack.enter_async_context(open_store(StoreSettings("memory"), time))
        bus, telemetry, progress = Bus(), Telemetry(), ProgressStore(store)
        run_store = records(store, time)
        approvals = ExecApprovals(
            ExecApprovalStore(store),
            bus,
            telemetry,
            Introspection(store, time),
            time,
            node_id="node-1",
            is_draining=lambda: False,
        )
        emitted: list[tuple[str, Mapping[str, float], Mapping[str, object]]] = []
        telemetry.attach("", lambda name, numbers, meta: emitted.append((name, numbers, meta)))
        runtime = Runtime(
            executor=ConfiguredExecutor(path, used),
            records=run_store,
            progress=progress,
            approvals=approvals,
            bus=bus,
            telemetry=telemetry,
            clock=time,
            paths=PathSettings(home),
            settings=settings or GatewaySettings(node_id="node-1", peer_roots=(PEER_ROOT,)),
        )
        await stack.enter_async_context(runtime.serving())
        chat_states = ChatStateStore(store, time)
        yield Gateway(
            runtime,
            used,
            bus,
            store,
            run_store,
            chat_states,
            progress,
            approvals,
            time,
            telemetry,
            emitted,
        )
