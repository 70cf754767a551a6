"""A request under the sender's key: who may submit it, and what a repeat is told.

| found under the key | what is done |
|---|---|
| nothing | reserved with a fresh run id, then submitted |
| `completed` | the stored answer once more |
| `outcome_unknown` | the stored receipt once more, never a submission |
| `submitted` | 202: accepted |
| `pending`, lease live | 202: processing |
| `pending`, lease over | taken over, submitted again under the run id that it has |
| `pending`, no run id (old) | 200: unknown, for ever |

Whatever is written goes through core's reservations, whose lease says who may write. No success
leaves before its receipt is stored: when the store fails, the answer is 503.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from lemon_core import ids
from lemon_core.idempotency import (
    Ambiguous,
    Completed,
    Idempotency,
    LeaseLost,
    OutcomeUnknown,
    Pending,
    Receipt,
    Reservation,
    Reserved,
    Submitted,
)
from lemon_core.logs import get_logger
from lemon_core.store import StoreError
from lemon_gateway.webhook.request import Incoming
from lemon_gateway.webhook.settings import Integration

NO_RECEIPT: Final = "durable receipt unavailable"
OTHER_PAYLOAD: Final = "idempotency key was used with another payload"

log = get_logger("lemon_gateway.webhook")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a sender is told."""

    status: int
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class NotStored:
    """What to answer because something was not stored.

    `is_elsewhere` tells that another request has the key now, and sees to the run.
    """

    answer: Answer
    is_elsewhere: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to submit one request as `run_id`; without a key nothing is stored of it.

    `taken_over` says that an earlier request with the key may have submitted it.
    """

    run_id: str
    receipt: Receipt
    reserved: Reserved | None = None
    taken_over: bool = False


class Claims:
    """The requests that came with a key."""

    def __init__(self, records: Idempotency) -> None:
        self._records = records

    async def take(self, integration: Integration, incoming: Incoming) -> Claim | Answer:
        """The right to submit, or the answer when it is somebody else's or done."""
        run_id = ids.run_id()
        receipt: dict[str, object] = {
            "session_key": integration.session_key,
            "mode": integration.mode,
            "digest": incoming.message.digest,
        }
        if incoming.key is None:
            return Claim(run_id, receipt)
        key = hashlib.sha256(incoming.key.encode()).hexdigest()
        try:
            found = await self._records.reserve(
                integration.scope, key, run_id, integration.lease_ms, receipt
            )
        except StoreError as exc:
            log.error("webhook.not_reserved", integration=integration.id, error=str(exc))
            return Answer(503, {"error": NO_RECEIPT})
        return _claimed(found, receipt, run_id)

    async def record(
        self,
        claim: Claim,
        state: Literal["submitted", "completed", "outcome_unknown"],
        answer: Answer | None = None,
    ) -> NotStored | None:
        """Store how far it is, `answer` with it; None when that is stored."""
        if claim.reserved is None:
            return None
        receipt = None
        if answer is not None:
            told = {"response_status": answer.status, "response_payload": dict(answer.body)}
            receipt = {**claim.receipt, **told}
        try:
            await self._records.advance(claim.reserved, state, receipt)
        except LeaseLost:
            return NotStored(await self._as_stored(claim, claim.reserved), is_elsewhere=True)
        except StoreError as exc:
            log.error("webhook.receipt_not_stored", run_id=claim.run_id, error=str(exc))
            return NotStored(without_receipt(claim.run_id), is_elsewhere=False)
        return None

    async def withdraw(self, claim: Claim) -> None:
        """Let a repeat try again: what was submitted here was not taken, for certain.

        What an earlier request submitted may have been, so that its run id stays.
        """
        if claim.reserved is None:
            return
        give_up = self._records.let_go if claim.taken_over else self._records.release
        try:
            await give_up(claim.reserved)
        except (LeaseLost, StoreError) as exc:
            # The repeat is told to wait until the lease is over, and is submitted then.
            log.warning("webhook.not_withdrawn", run_id=claim.run_id, error=str(exc))

    async def _as_stored(self, claim: Claim, lost: Reserved) -> Answer:
        try:
            found = await self._records.look(lost.scope, lost.key)
        except StoreError as exc:
            log.error("webhook.receipt_not_read", run_id=claim.run_id, error=str(exc))
            return without_receipt(claim.run_id)
        return without_receipt(claim.run_id) if found is None else _told(found)


def without_receipt(run_id: str) -> Answer:
    """The answer to a request whose receipt could not be stored."""
    return Answer(503, {"error": NO_RECEIPT, "run_id": run_id})


def _claimed(found: Reservation, receipt: Receipt, run_id: str) -> Claim | Answer:
    known = {} if isinstance(found, Ambiguous) else found.receipt or {}
    if known.get("digest", receipt["digest"]) != receipt["digest"]:
        # A sender that mixes its keys up must not think that this message was taken.
        return Answer(422, {"error": OTHER_PAYLOAD})
    if isinstance(found, Reserved):
        return Claim(found.run_id, {**receipt, **known}, found, taken_over=found.run_id != run_id)
    return _told(found)


def _told(found: Reservation) -> Answer:
    """What a repeat is told of a request that is somebody else's or done."""
    match found:
        case Ambiguous():
            body = {"status": "legacy_outcome_unknown", "duplicate": True, "retry_safe": False}
            return Answer(200, body)
        case Pending(run_id, receipt) | Reserved(run_id=run_id, receipt=receipt):
            return Answer(202, {**_known(run_id, receipt, "session_key"), "status": "processing"})
        case Submitted(run_id, receipt):
            known = _known(run_id, receipt, "session_key", "mode")
            return Answer(202, {**known, "status": "accepted"})
        case OutcomeUnknown(run_id, receipt):
            known = _known(run_id, receipt, "session_key", "mode")
            return _replayed(receipt) or unknown_outcome(known)
        case Completed(run_id, receipt):
            known = _known(run_id, receipt, "session_key", "mode")
            return _replayed(receipt) or Answer(202, {**known, "status": "accepted"})
    assert_never(found)


def unknown_outcome(known: Mapping[str, object]) -> Answer:
    """The receipt of a message that may have been taken: nobody can tell, and a retry may not."""
    return Answer(200, {**known, "status": "outcome_unknown", "retry_safe": False})


def _known(run_id: str, receipt: Receipt | None, *names: str) -> dict[str, object]:
    stored = receipt or {}
    return {"run_id": run_id, **{name: stored[name] for name in names if name in stored}}


def _replayed(receipt: Receipt | None) -> Answer | None:
    stored = receipt or {}
    status, body = stored.get("response_status"), stored.get("response_payload")
    if isinstance(status, int) and isinstance(body, Mapping):
        return Answer(status, body)
    return None
