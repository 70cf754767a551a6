"""The router in each form in which it is reached: in the process, on its socket, and over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from lemon_core.boot import boot
from lemon_core.bridges import (
    ENGINE_RUNTIME,
    ROUTER,
    KeepAlive,
    SteerMode,
    SteerOutcome,
    SubmitResult,
)
from lemon_core.events import PendingApproval
from lemon_core.messages import InboundMessage
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.router_views import RunInfo, SessionInfo, SessionView
from lemon_core.rpc.auth import OPERATOR
from lemon_core.rpc.router_client import RouterClient
from lemon_core.runs import RunRequest
from lemon_core.runtime import Runtime
from lemon_core.store.wrappers import UNSET, SessionSettings, Unset
from lemon_core.testing import temp_home
from lemon_router.admission import AdmissionStore
from lemon_router.questions import Questions
from lemon_router.router import Router
from lemon_router.sessions import Sessions
from lemon_router.tests.scripted_engine import ScriptedEngine
from lemon_router.views import Views

Form = Literal["in_process", "unix_socket", "tcp"]
FORMS: tuple[Form, ...] = ("in_process", "unix_socket", "tcp")

TOKENS = [
    {"id": "alice", "secret": "ALICE_TOKEN"},
    {"id": "bob", "secret": "BOB_TOKEN", "origins": ["node"], "policy": "read_only"},
    {"id": "root", "secret": "ROOT_TOKEN", "scopes": ["runs", "admin"], "origins": ["node"]},
]
SECRETS = {"ALICE_TOKEN": "secret-of-alice", "BOB_TOKEN": "secret-of-bob", "ROOT_TOKEN": "root!"}
UNIX: Mapping[str, object] = {"enabled": True}
TCP: Mapping[str, object] = {"enabled": True, "listen": "127.0.0.1:0", "tokens": TOKENS}


class Calls(Protocol):
    """What every form has."""

    async def submit_run(self, request: RunRequest) -> SubmitResult: ...
    async def handle_inbound(self, message: InboundMessage) -> SubmitResult: ...
    async def abort_session(self, session_key: str, reason: str = ...) -> None: ...
    async def abort_run(self, run_id: str, reason: str = ...) -> None: ...
    async def keep_run_alive(self, run_id: str, decision: KeepAlive) -> None: ...
    async def active_run(self, session_key: str) -> str | None: ...
    async def session_busy(self, session_key: str) -> bool: ...
    async def list_active_sessions(self) -> list[dict[str, str]]: ...
    async def counts(self) -> dict[str, int]: ...
    async def admission(self, run_id: str) -> str | None: ...
    async def steer_run(
        self, run_id: str, text: str, mode: SteerMode, submission_run_id: str
    ) -> SteerOutcome: ...
    async def list_sessions(
        self, *, active_only: bool = ..., limit: int | None = ...
    ) -> list[SessionInfo]: ...
    async def get_session(
        self, session_key: str, run_limit: int | None = ...
    ) -> SessionView | None: ...
    async def reset_session(self, session_key: str) -> None: ...
    async def patch_session(
        self,
        session_key: str,
        *,
        model: str | Unset | None = ...,
        thinking_level: str | Unset | None = ...,
    ) -> SessionSettings: ...
    async def list_runs(
        self, session_key: str | None = ..., states: Sequence[str] = ..., limit: int | None = ...
    ) -> list[RunInfo]: ...
    async def get_run(self, run_id: str) -> RunInfo | None: ...
    async def list_approvals(self) -> list[PendingApproval]: ...
    async def resolve_approval(self, approval_id: str, decision: str) -> bool: ...


class InProcess(Router):
    """The router's own objects under the names of the service; built over a running router."""

    def __init__(self, runtime: Runtime, router: Router, engine: ScriptedEngine) -> None:
        self.__dict__.update(router.__dict__)
        self._views = Views(router, runtime.runs, runtime.session_settings)
        self._sessions = Sessions(
            router,
            runtime.runs,
            runtime.policies,
            runtime.session_settings,
            AdmissionStore(runtime.store),
            runtime.bus,
        )
        self._questions = Questions(runtime.approvals, engine=engine, ended=router.is_over)

    async def list_sessions(
        self, *, active_only: bool = False, limit: int | None = None
    ) -> list[SessionInfo]:
        return await self._views.sessions(OPERATOR, active_only=active_only, limit=limit or 100)

    async def get_session(
        self, session_key: str, run_limit: int | None = None
    ) -> SessionView | None:
        return await self._views.session(session_key, OPERATOR, run_limit=run_limit or 10)

    async def reset_session(self, session_key: str) -> None:
        await self._sessions.reset(session_key)

    async def patch_session(
        self,
        session_key: str,
        *,
        model: str | Unset | None = UNSET,
        thinking_level: str | Unset | None = UNSET,
    ) -> SessionSettings:
        return await self._sessions.patch(session_key, model, thinking_level)

    async def list_runs(
        self,
        session_key: str | None = None,
        states: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[RunInfo]:
        return await self._views.runs(
            OPERATOR, session_key=session_key, states=states, limit=limit or 100
        )

    async def get_run(self, run_id: str) -> RunInfo | None:
        return await self._views.run(run_id)

    async def list_approvals(self) -> list[PendingApproval]:
        return await self._questions.pending()

    async def resolve_approval(self, approval_id: str, decision: str) -> bool:
        return await self._questions.resolve(approval_id, decision)


@dataclass
class Served:
    """A running router with the scripted gateway behind it."""

    runtime: Runtime
    engine: ScriptedEngine
    router: Router
    paths: PathSettings

    @property
    def address(self) -> str:
        return self.runtime.listening["router"]

    @asynccontextmanager
    async def client(self, token: str | None = None) -> AsyncIterator[RouterClient]:
        async with RouterClient(self.address, clock=self.runtime.clock, token=token) as client:
            yield client

    async def play(self, run_id: str) -> None:
        """A whole run, as the gateway would store and publish it."""
        command = (await self.engine.wait_submitted(run_id)).command
        await self.runtime.runs.begin(run_id, b"d", session_key=command.session_key)
        summary = {
            "session_key": command.session_key,
            "completed": {"ok": True, "answer": "hello", "run_id": run_id},
        }
        await self.runtime.runs.finalize(run_id, summary)
        self.engine.start(run_id)
        self.engine.delta(run_id, 1, "he")
        self.engine.delta(run_id, 2, "llo")
        self.engine.complete(run_id, answer="hello")


@asynccontextmanager
async def served(
    rpc: Mapping[str, object] = UNIX,
    *,
    store_url: str | None = None,
    home: PathSettings | None = None,
    **router_section: object,
) -> AsyncIterator[Served]:
    """A runtime with the scripted gateway and the router, its service as `rpc` says.

    With a `store_url` it shares that store with others; `home` is one that was there before.
    """
    section = {"engine_runtime": "in_process", "health_port": 0, "rpc": rpc, **router_section}
    profile = Profile(
        name="test",
        components=("lemon_router.tests.engine_app:component", "lemon_router.app:component"),
        config={"router": section, "store": {"backend": "postgres" if store_url else "sqlite"}},
    )
    with nullcontext(home) if home is not None else temp_home() as paths:
        environ = {"HOME": str(paths.home), **SECRETS, "LEMON_STORE_URL": store_url or ""}
        async with boot(profile, cwd=paths.home, environ=environ, paths=paths) as runtime:
            engine = cast(ScriptedEngine, runtime.capabilities.get(ENGINE_RUNTIME))
            router = cast(Router, runtime.capabilities.get(ROUTER))
            yield Served(runtime, engine, router, paths)


@asynccontextmanager
async def calls_of(form: Form) -> AsyncIterator[tuple[Served, Calls]]:
    """The router in this form, called by somebody who may do everything."""
    async with AsyncExitStack() as stack:
        s = await stack.enter_async_context(served(TCP if form == "tcp" else UNIX))
        if form == "in_process":
            yield s, InProcess(s.runtime, s.router, s.engine)
        else:
            token = "root!" if form == "tcp" else None
            yield s, await stack.enter_async_context(s.client(token))
