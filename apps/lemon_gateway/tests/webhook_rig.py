"""A webhook over real HTTP and a real store, with a scripted router behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from lemon_core.bridges import ROUTER, RouterBridge, SubmitResult
from lemon_core.bus import Bus, run_topic
from lemon_core.capabilities import Capabilities
from lemon_core.config.gateway import GatewaySection
from lemon_core.events import Completion, RunAbsorbed, RunCompleted
from lemon_core.http.listen import listen
from lemon_core.idempotency import IDEMPOTENCY, Idempotency
from lemon_core.paths import PathSettings
from lemon_core.runs import RunRequest
from lemon_core.store import RunStore, Store, StoreError, StoreSettings, open_store
from lemon_core.store.core import ABSENT
from lemon_core.testing import FakeClock
from lemon_gateway.ingress_limits import Limits
from lemon_gateway.ingress_server import serving_routes
from lemon_gateway.webhook.app import Ports, opened
from lemon_gateway.webhook.settings import integrations_of

TOKEN = "a token of the tests"
Script = Callable[[RunRequest], Awaitable[SubmitResult]]


@dataclass
class ScriptedRouter:
    """Takes requests; `script` answers instead, `admissions` are what it knows of others."""

    bus: Bus
    requests: list[RunRequest] = field(default_factory=list)
    script: Script | None = None
    admissions: dict[str, str] = field(default_factory=dict)

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        assert request.run_id is not None
        self.requests.append(request)
        if self.script is not None:
            return await self.script(request)
        return SubmitResult("accepted", request.run_id)

    async def admission(self, run_id: str) -> str | None:
        return self.admissions.get(run_id)

    def ends(self, run_id: str, answer: str = "done", *, ok: bool = True) -> None:
        """Publish the end of a run."""
        completed = Completion(ok=ok, answer=answer, run_id=run_id, session_key="agent:x:main")
        ended = RunCompleted(completed=completed)
        self.bus.publish_event(run_topic(run_id), "run_completed", ended)

    def absorbs(self, run_id: str, by: str) -> None:
        """Publish that another run took it over."""
        absorbed = RunAbsorbed(run_id=run_id, absorbed_by=by, mode="followup")
        self.bus.publish_event(run_topic(run_id), "run_absorbed", absorbed)

    async def completes(self, request: RunRequest) -> SubmitResult:
        """A script: each run is over before its submission is answered."""
        assert request.run_id is not None
        self.ends(request.run_id)
        return SubmitResult("accepted", request.run_id)


class BrokenStore:
    """A store some of whose calls fail: `left[name]` more calls work, then none does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.left: dict[str, int] = {}

    async def load(self, *args: object) -> object:
        self._count("load")
        return await self._store.load(*args)  # type: ignore[arg-type]  # handed through

    async def compare_and_swap(self, *args: object) -> bool:
        self._count("compare_and_swap")
        return await self._store.compare_and_swap(*args)  # type: ignore[arg-type]

    def _count(self, name: str) -> None:
        if name in self.left:
            if self.left[name] == 0:
                raise StoreError("the disk is full")
            self.left[name] -= 1


@dataclass
class Rig:
    """One webhook, and what a test looks at."""

    url: str
    session: aiohttp.ClientSession
    router: ScriptedRouter
    store: Store
    broken: BrokenStore
    clock: FakeClock
    runs: RunStore
    capabilities: Capabilities

    async def post(
        self,
        payload: object = None,
        *,
        path: str = "/webhooks/ci",
        token: str | None = TOKEN,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: object,
    ) -> tuple[int, dict[str, object]]:
        """Status and body of a POST; a payload is sent as JSON."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if key is not None:
            sent["Idempotency-Key"] = key
        if payload is not None:
            more["data"] = payload if isinstance(payload, bytes) else json.dumps(payload)
            sent.setdefault("Content-Type", "application/json")
        async with self.session.post(self.url + path, headers=sent, **more) as answer:  # type: ignore[arg-type]
            return answer.status, json.loads(await answer.read())

    async def record(self) -> dict[str, object] | None:
        """The one stored reservation."""
        rows = await self.store.load_all(IDEMPOTENCY)
        assert len(rows) <= 1
        return dict(rows[0][1]) if rows else None  # type: ignore[call-overload]  # a map

    async def change_record(self, **changes: object) -> None:
        """Store the reservation with other values; None takes a key away."""
        ((row, value),) = await self.store.load_all(IDEMPOTENCY)
        assert isinstance(value, dict)
        changed = {**value, **changes}
        new = {key: found for key, found in changed.items() if found is not None}
        assert await self.store.compare_and_swap(IDEMPOTENCY, row, value, new)

    async def forget(self) -> None:
        """Take the reservation away."""
        ((row, value),) = await self.store.load_all(IDEMPOTENCY)
        assert await self.store.compare_and_swap(IDEMPOTENCY, row, value, ABSENT)


@asynccontextmanager
async def webhook_rig(
    tmp_path: Path,
    integration: Mapping[str, object] | None = None,
    section: Mapping[str, object] | None = None,
    *,
    clock: FakeClock | None = None,
    lookup: Callable[[str, int], Awaitable[Sequence[str]]] | None = None,
) -> AsyncIterator[Rig]:
    """A webhook with the integration `ci`."""
    used, bus, capabilities = clock or FakeClock(), Bus(), Capabilities()
    router = ScriptedRouter(bus)
    capabilities.register(ROUTER, router)
    row = {"token": TOKEN, **(integration or {})}
    gateway = GatewaySection.model_validate(
        {"webhook": {"integrations": {"ci": row}, **(section or {})}}
    )
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            open_store(StoreSettings("sqlite", tmp_path / "store"), used)
        )
        broken, runs = BrokenStore(store), RunStore(store, used)
        records = Idempotency(broken, used)  # type: ignore[arg-type]  # the two calls that it needs
        ports = Ports(RouterBridge(capabilities), bus, runs, records, used)
        if lookup is not None:
            ports = Ports(RouterBridge(capabilities), bus, runs, records, used, lookup)
        integrations = integrations_of(gateway, PathSettings(home=tmp_path))
        routes = await stack.enter_async_context(opened(integrations, ports))
        listener = listen("127.0.0.1", 0, "port")
        port = await stack.enter_async_context(
            serving_routes("webhook", routes, listener, Limits())
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = f"http://127.0.0.1:{port}"
        yield Rig(url, session, router, store, broken, used, runs, capabilities)


@dataclass
class Receiver:
    """Takes callbacks: `statuses` are what the first ones are answered with."""

    url: str = ""
    port: int = 0
    statuses: list[int] = field(default_factory=list)
    bodies: list[dict[str, object]] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    arrived: anyio.Event = field(default_factory=anyio.Event)
    redirect_to: str | None = None

    async def handle(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.hosts.append(request.headers["host"])
        self.arrived.set()
        self.arrived = anyio.Event()
        if self.redirect_to is not None:
            return RedirectResponse(self.redirect_to, 307)
        return PlainTextResponse("", self.statuses.pop(0) if self.statuses else 204)

    async def got(self, count: int) -> None:
        """Return when as many have come."""
        with anyio.fail_after(5):
            while len(self.bodies) < count:
                await self.arrived.wait()


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    """A server that takes callbacks."""
    found = Receiver()
    app = Starlette(routes=[Route("/hook", found.handle, methods=["POST"])])
    async with serving_routes(
        "receiver", app.routes, listen("127.0.0.1", 0, "port"), Limits()
    ) as port:
        found.port, found.url = port, f"http://127.0.0.1:{port}/hook"
        yield found
