"""How a message becomes an admitted run: what it means, whether it is new, its record and place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pydantic import ValidationError

from lemon_core import ids
from lemon_core.bridges import SubmitResult, SubmitStatus
from lemon_core.logs import get_logger
from lemon_core.runs import RunRequest
from lemon_core.store import StoreError, StoreUnavailable, UnsupportedValue
from lemon_core.store.keyed_lock import KeyedLock
from lemon_core.tool_policy import InvalidToolPolicy
from lemon_router.admission import Admission, new_admission, request_digest
from lemon_router.builder import Builder
from lemon_router.compaction import Marker
from lemon_router.endings import REASON_MAX_CHARS, Recorder
from lemon_router.errors import Rejected
from lemon_router.hooks import Taken
from lemon_router.lifecycle import FULL, Lifecycle
from lemon_router.policy import Caller
from lemon_router.requests import Submission
from lemon_router.retry import RETRY_OF
from lemon_router.surroundings import Surroundings

log = get_logger("lemon_router.router")

SHUTTING_DOWN: Final = "shutting_down"
RETRY_MS: Final = 1_000
RETRY_DIGEST: Final = "retry"
"""No request has this digest: a retry's id cannot be taken for a caller's."""
HERE: Final = Caller()
"""The caller of in-process submissions: whoever runs this process."""


class Submitting:
    """Takes messages for one router."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        *,
        builder: Builder,
        around: Surroundings,
        record: Recorder | None,
    ) -> None:
        self._lifecycle, self._builder = lifecycle, builder
        self._around, self._clock = around, around.clock
        self._ledger, self._coordinator = lifecycle.ledger, lifecycle.coordinator
        self._record = record
        # One run id is decided about at a time: a second sender waits for the first's answer.
        self._deciding = KeyedLock()

    async def submit(
        self, request: RunRequest | Mapping[str, object], caller: Caller = HERE
    ) -> SubmitResult:
        """Take a message; the answer is definite, or `outcome_unknown` if the store cannot tell.

        The detail of an accepted one says what became of it: `disposition` is `started`, `queued`
        (with its `position` and the `active_run_id`), `merged` (with the ids it took over), or
        `steering`, whose outcome comes as an event.
        """
        try:
            normal = RunRequest.normalize(request)
        except InvalidToolPolicy as exc:
            detail = {"message": str(exc), "path": exc.path}
            return SubmitResult("rejected", None, "invalid_tool_policy", detail=detail)
        except ValidationError as exc:
            return SubmitResult("rejected", None, "invalid_request", detail={"message": str(exc)})
        run_id = normal.run_id or ids.run_id()
        try:
            async with self._deciding.hold(run_id):
                return await self._submit(normal, run_id, caller)
        except Rejected as exc:
            if exc.reason == SHUTTING_DOWN:
                return SubmitResult("unavailable", run_id, str(exc))
            reason = exc.reason[:REASON_MAX_CHARS]
            self._note("orchestration_failed", normal, run_id, {"reason": reason})
            return SubmitResult("rejected", run_id, exc.reason, detail=exc.detail)
        except UnsupportedValue as exc:
            detail = {"message": str(exc)}
            return SubmitResult("rejected", run_id, "invalid_request", detail=detail)
        except StoreError as exc:
            unknown = isinstance(exc, StoreUnavailable) and exc.outcome_unknown
            status: SubmitStatus = "outcome_unknown" if unknown else "unavailable"
            return SubmitResult(status, run_id, f"{exc.code}: {exc}")

    async def _submit(self, request: RunRequest, run_id: str, caller: Caller) -> SubmitResult:
        live = self._ledger.live(run_id)
        if live is not None:
            return _known(live, request)
        try:
            admitted = await self._admit(request, run_id, caller)
        except Rejected:
            # A known run is answered as such, whatever would be said of it now.
            stored = await self._ledger.load(run_id)
            if stored is None:
                raise
            return _known(stored, request)
        if isinstance(admitted, Admission):
            return _known(admitted, request)
        taken = self._lifecycle.take(admitted)
        if taken.reason is not None:
            await self._withdraw(run_id)
            raise Rejected(taken.reason, f"run {run_id} finds no room: {taken.reason}")
        told = _told(taken)
        mode = {"queue_mode": request.queue_mode, "disposition": told["disposition"]}
        self._note("orchestration_resolved", request, run_id, mode)
        facts: dict[str, object] = {
            "session_key": admitted.session_key,
            "origin": request.origin,
            "engine": "lemon",
        }
        self._around.emit("lemon.run.submit", facts)
        return SubmitResult("accepted", run_id, detail=told)

    def _note(
        self, event_type: str, request: RunRequest, run_id: str, facts: dict[str, object]
    ) -> None:
        if self._record is not None:
            self._record(
                event_type,
                {"origin": request.origin, **facts},
                run_id=run_id,
                session_key=request.session_key,
                agent_id=request.agent_id,
            )

    async def try_again(self, submission: Submission) -> None:
        """Admit a run that the router itself sends once more; a known id is left alone."""
        again = replace(submission, order=self._ledger.next_order())
        owner = self._ledger.owner(str(submission.meta.get(RETRY_OF))) or HERE.id
        now = self._clock.now_ms()
        admission = new_admission(
            RETRY_DIGEST, again, owner=owner, router=self._around.journal.epoch, now_ms=now
        )
        if await self._ledger.put_new(admission):
            taken = self._lifecycle.take(again)
            if taken.reason is not None:
                await self._withdraw(again.run_id)

    async def _withdraw(self, run_id: str) -> None:
        try:
            await self._ledger.withdraw(run_id)
        except StoreError as exc:
            # The record may still be there, and would run after a restart.
            self._ledger.forget(run_id)
            raise StoreUnavailable(str(exc), outcome_unknown=True) from exc

    async def _admit(
        self, request: RunRequest, run_id: str, caller: Caller
    ) -> Submission | Admission:
        """The submission, with its record stored; or the record that has the run id already."""
        if self._lifecycle.refusing:
            raise Rejected(SHUTTING_DOWN, "the router is shutting down")
        if not caller.may_use_origin(request.origin):
            raise Rejected("origin_not_allowed", f"origin {request.origin!r} is not allowed here")
        if not request.prompt.strip() and not request.images:
            raise Rejected("empty_prompt", "the prompt is empty")
        now = self._clock.now_ms()
        built = await self._builder.build(request, run_id, caller, now)
        submission = replace(built, order=self._ledger.next_order())
        if self._lifecycle.full and self._coordinator.would_start(submission):
            raise Rejected(FULL, "as many runs are active as may be")
        digest = request_digest(request)
        admission = new_admission(
            digest, submission, owner=caller.id, router=self._around.journal.epoch, now_ms=now
        )
        ownership = self._around.ownership
        ownership.ask(submission.session_key)
        # The put is the look-up: a fresh id, which is nearly every one, costs no read.
        try:
            fresh = await self._ledger.put_new(admission)
        except StoreUnavailable as exc:
            if exc.outcome_unknown:
                self._around.tasks.start_soon(self._find_out, admission, submission)
            raise
        if not fresh:
            return await self._ledger.load(run_id) or admission
        if submission.consumes is not None:
            await self._consume(submission.consumes)
        await ownership.answered(submission.session_key)
        return submission

    async def _consume(self, marker: Marker) -> None:
        try:
            await self._builder.compactions.consume(marker)
        except StoreError as exc:
            # The next message starts afresh once more: odd, but nothing is lost.
            log.warning("compaction.not_consumed", error=str(exc))

    async def _find_out(self, admission: Admission, submission: Submission) -> None:
        """A record whose write may have happened: if it did, its run is not left without an end."""
        while True:
            await self._clock.sleep(RETRY_MS)
            async with self._deciding.hold(admission.run_id):
                if self._ledger.live(admission.run_id) is not None:
                    return
                try:
                    stored = await self._ledger.load(admission.run_id)
                except StoreError:
                    continue
                if stored is None or stored.created_at_ms != admission.created_at_ms:
                    return
                self._ledger.keep(stored)
                if self._lifecycle.take(submission).reason is not None:
                    self._lifecycle.restore(submission)
                    self._coordinator.release_held()
                return


def _known(record: Admission, request: RunRequest) -> SubmitResult:
    """The answer to a run id that was taken before."""
    if record.digest != request_digest(request):
        raise Rejected("run_id_conflict", f"run id {record.run_id} belongs to a different request")
    return SubmitResult("accepted", record.run_id, duplicate=True)


def _told(taken: Taken) -> dict[str, object]:
    """What became of a message, as its sender is told."""
    told: dict[str, object] = {"disposition": taken.disposition}
    if taken.position:
        told["position"] = taken.position
    if taken.active_run_id is not None:
        told["active_run_id"] = taken.active_run_id
    if taken.merged:
        told["merged"] = list(taken.merged)
    return told
