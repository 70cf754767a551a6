"""`POST /webhooks/<integration>`: the steps from a request to a run, and how it is answered.

The steps and the answers of those that fail, in order:

| step | answer |
|---|---|
| the integration is known | 404 |
| the token is right | 401 |
| there is a prompt or an attachment | 422 |
| the idempotency key is one | 422 |
| the callback may be called | 422 |
| nobody else has the key | what is stored under it |
| the waiter for the callback is ready | 500 |
| the router takes it | 503 when nothing happened, 500 when it refused |
| the receipt is stored | 503 |

Then 202 at once (`async`), or 200 with the run's end (`sync`). Where nobody can tell whether the
router took it, 200 says that, and a repeat never submits it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, assert_never
from urllib.parse import urlsplit

import anyio
import anyio.abc
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from lemon_core.address_guard import Lookup, system_lookup
from lemon_core.bridges import RouterBridge
from lemon_core.bus import Bus
from lemon_core.clock import Clock
from lemon_core.idempotency import Idempotency
from lemon_core.logs import get_logger
from lemon_core.runs import RunRequest
from lemon_core.runtime import Runtime as CoreRuntime
from lemon_gateway.ingress import Surface
from lemon_gateway.webhook.callbacks import CallbackSender
from lemon_gateway.webhook.idempotency import Answer, Claim, Claims, unknown_outcome
from lemon_gateway.webhook.request import Incoming, Refused, read_incoming
from lemon_gateway.webhook.settings import Integration, integrations_of, unprotected
from lemon_gateway.webhook.waiting import CallbackJob, CallbackWaiters, Ends, Runs, told

PATH: Final = "/webhooks/{integration_id}"
SECTION: Final = "gateway.webhook"
LARGE_AT_ONCE: Final = 2
"""So many large payloads are read at a time, each in a thread."""

_BROKEN: Final = "internal server error"
_NO_ROUTER: Final = "router unavailable"
_CONFLICT: Final = "run_id_conflict"

log = get_logger("lemon_gateway.webhook")


@dataclass(frozen=True, slots=True)
class Ports:
    """What the webhook works with."""

    router: RouterBridge
    bus: Bus
    runs: Runs
    records: Idempotency
    clock: Clock
    lookup: Lookup = system_lookup


async def surface(runtime: CoreRuntime) -> Surface:
    """The webhook of `runtime`."""
    section = runtime.config.gateway
    ports = Ports(
        RouterBridge(runtime.capabilities),
        runtime.bus,
        runtime.runs,
        runtime.idempotency,
        runtime.clock,
    )
    integrations = integrations_of(section, runtime.paths)
    return Surface(
        id="webhook",
        section=SECTION,
        bind=section.webhook.bind,
        port=section.webhook.port,
        opened=lambda: opened(integrations, ports),
        unprotected=unprotected(section),
    )


@asynccontextmanager
async def opened(
    integrations: Mapping[str, Integration], ports: Ports
) -> AsyncIterator[Sequence[BaseRoute]]:
    """The routes; callbacks that are still to come end with the block."""
    async with anyio.create_task_group() as tasks:
        webhook = Webhook(integrations, ports, tasks)
        try:
            yield (Route(PATH, webhook.handle, methods=["POST"]),)
        finally:
            tasks.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class Work:
    """One request that may be submitted."""

    integration: Integration
    incoming: Incoming
    claim: Claim

    def request(self) -> RunRequest:
        """What the router is asked for: what came from outside, marked, and its rights."""
        integration, message = self.integration, self.incoming.message
        facts = {
            "integration_id": integration.id,
            "metadata": dict(message.metadata),
            "attachments": [attachment.as_dict() for attachment in message.attachments],
            "request": dict(self.incoming.facts),
            "integration": integration.flags(),
        }
        return RunRequest(
            origin="webhook",
            run_id=self.claim.run_id,
            session_key=integration.session_key,
            agent_id=integration.agent_id,
            prompt=message.prompt,
            queue_mode=integration.queue_mode,
            cwd=integration.cwd,
            tool_policy=integration.policy,
            meta={"webhook": facts},
        )

    def known(self, mode: str) -> dict[str, object]:
        """What every answer begins with."""
        return {
            "run_id": self.claim.run_id,
            "session_key": self.integration.session_key,
            "mode": mode,
        }

    def job(self) -> CallbackJob | None:
        """The callback that the sender wants."""
        url = self.incoming.callback_url
        if url is None:
            return None
        return CallbackJob(self.integration, self.incoming.message, self.claim.run_id, url)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What came of a submission: `answer` is set when there is nothing to wait for."""

    answer: Answer | None = None
    may_run: bool = True
    duplicate: bool = False


class Webhook:
    """The endpoint."""

    def __init__(
        self,
        integrations: Mapping[str, Integration],
        ports: Ports,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._integrations = integrations
        self._threads = anyio.CapacityLimiter(LARGE_AT_ONCE)
        self._router, self._bus, self._clock = ports.router, ports.bus, ports.clock
        self._claims = Claims(ports.records)
        self._ends = Ends(ports.bus, ports.runs, ports.router)
        self._sender = CallbackSender(ports.clock, ports.lookup)
        self._waiters = CallbackWaiters(tasks, self._ends, self._sender, ports.clock)

    async def handle(self, request: Request) -> Response:
        """The answer to a POST."""
        try:
            answer = await self._answer(request)
        except Refused as exc:
            answer = Answer(exc.status, {"error": exc.error})
        return JSONResponse(dict(answer.body), status_code=answer.status)

    async def _answer(self, request: Request) -> Answer:
        integration = self._integrations.get(request.path_params["integration_id"])
        if integration is None:
            raise Refused(404, "integration not found")
        incoming = await read_incoming(request, integration, self._threads)
        await self._check_callback(integration, incoming)
        claim = await self._claims.take(integration, incoming)
        if isinstance(claim, Answer):
            return claim
        work = Work(integration, incoming, claim)
        return await (self._waited(work) if integration.mode == "sync" else self._taken(work))

    async def _check_callback(self, integration: Integration, incoming: Incoming) -> None:
        url = incoming.callback_url
        refusal = url and await self._sender.refusal(url, integration.callbacks)
        if refusal:
            log.warning("webhook.callback_refused", integration=integration.id, reason=refusal)
            raise Refused(422, "invalid callback url")

    async def _waited(self, work: Work) -> Answer:
        """The answer of `sync`: the end of the run."""
        began_ms, run_id = self._clock.monotonic_ms(), work.claim.run_id
        with self._bus.watch_run(run_id) as waiter:
            submitted = await self._submit(work)
            if submitted.answer is not None:
                return submitted.answer
            not_stored = await self._claims.record(work.claim, "submitted")
            if not_stored is not None:
                return not_stored.answer
            completed = await self._ends.earlier(run_id) if submitted.duplicate else None
            ended = completed or await waiter.completion(work.integration.timeout_ms)
        if isinstance(ended, str):
            return Answer(500, {"error": "run timed out", "run_id": run_id})
        duration_ms = self._clock.monotonic_ms() - began_ms
        body = {**work.known("sync"), "completed": told(ended), "duration_ms": duration_ms}
        job = work.job()
        if job is not None:
            callback = job.body(ended, duration_ms)
            delivered = await self._sender.send(job.url, work.integration.callbacks, callback)
            body["callback"] = delivered.as_dict()
        answer = Answer(200, body)
        not_stored = await self._claims.record(work.claim, "completed", answer)
        return answer if not_stored is None else not_stored.answer

    async def _taken(self, work: Work) -> Answer:
        """The answer of `async`: that it was taken."""
        job = work.job()
        waiting = None if job is None else await self._waiters.start(job)
        if job is not None and waiting is None:
            log.error("webhook.no_waiter", run_id=work.claim.run_id)
            await self._claims.withdraw(work.claim)
            return Answer(500, {"error": _BROKEN})
        submitted = await self._submit(work)
        answer, may_run = submitted.answer, submitted.may_run
        if answer is None:
            answer = _accepted(work, job)
            not_stored = await self._claims.record(work.claim, "completed", answer)
            if not_stored is not None:
                answer, may_run = not_stored.answer, not not_stored.is_elsewhere
        if waiting is not None:
            await self._waiters.settle(waiting, may_run=may_run, duplicate=submitted.duplicate)
        return answer

    async def _submit(self, work: Work) -> Submitted:
        claim = work.claim
        result = await self._router.submit_run(work.request())
        match result.status:
            case "accepted":
                return Submitted(duplicate=result.duplicate)
            case "rejected" if claim.taken_over and result.reason == _CONFLICT:
                # It has the run, from before the configuration was changed.
                return Submitted(duplicate=True)
            case "outcome_unknown":
                log.warning("webhook.outcome_unknown", run_id=claim.run_id, reason=result.reason)
                answer = unknown_outcome(work.known(work.integration.mode))
                not_stored = await self._claims.record(claim, "outcome_unknown", answer)
                return Submitted(answer if not_stored is None else not_stored.answer)
            case "unavailable":
                answer = Answer(503, {"error": _NO_ROUTER})
            case "rejected":
                log.error("webhook.rejected", run_id=claim.run_id, reason=result.reason)
                answer = Answer(500, {"error": _BROKEN})
            case _:
                assert_never(result.status)
        await self._claims.withdraw(claim)
        return Submitted(answer, may_run=False)


def _accepted(work: Work, job: CallbackJob | None) -> Answer:
    body = {**work.known("async"), "status": "accepted"}
    if job is not None:
        # A sender need not know what the owner's address ends in: often that is a secret.
        told_url = urlsplit(job.url)._replace(query="", fragment="").geturl()
        body["callback"] = {"status": "scheduled", "url": told_url}
    return Answer(202, body)
