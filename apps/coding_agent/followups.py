"""Getting the result of background work to whoever asked for it: once, and whatever happens.

A living parent reads it in its own run. Otherwise the router gets it as a message for the parent's
session, under a run id that is made from the task's, so that no repetition becomes a second run.
When the router does not take it either, the session's next run begins with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

import anyio

from coding_agent.delivered import DeliveredMessage
from coding_agent.live_runs import LiveRun, LiveRuns
from coding_agent.tasks import TaskRecord, TaskStore
from lemon_core.bridges import RouterBridge
from lemon_core.clock import Clock
from lemon_core.execution_context import ContextRejected, ExecutionContext
from lemon_core.logs import get_logger
from lemon_core.runs import DEFAULT_AGENT, RunRequest

log = get_logger(__name__)

# The router may still be starting, or be in a restart of its own.
RETRY_DELAYS_MS: Final = (0, 1_000, 5_000, 30_000)
_NAMESPACE: Final = uuid.UUID("6f4a3cde-94b2-5a0e-9a8b-6d1f0c5b7a10")


class Followups:
    """One per runtime."""

    def __init__(
        self, store: TaskStore, live: LiveRuns, router: RouterBridge, clock: Clock
    ) -> None:
        self._store, self._live, self._router, self._clock = store, live, router, clock
        self._on_its_way: set[str] = set()
        # What nobody took, by session: a run's start must not have to search the store.
        self._left: dict[str, list[str]] = {}

    async def deliver(self, record: TaskRecord) -> None:
        """Deliver the end of a task that nobody waited for; returns when it is on its way."""
        if record.id in self._on_its_way or not record.awaits_delivery:
            return
        self._on_its_way.add(record.id)
        if not self._to_living(record):
            self._on_its_way.discard(record.id)
            await self._to_router(record)

    async def confirm(self, task_id: str) -> None:
        """The message of `deliver` or `pending` is part of the parent's conversation."""
        self._on_its_way.discard(task_id)
        await self._store.claim(task_id)

    async def give_back(self, task_id: str) -> None:
        """The run that had taken the message ended before it was read: deliver it otherwise."""
        self._on_its_way.discard(task_id)
        record = await self._store.get(task_id)
        if record is not None:
            await self.deliver(record)

    def take_back(self, record: TaskRecord) -> None:
        """Somebody reads the result in another way: withdraw the message that is not read yet."""
        parent = self._parent(record)
        if parent is not None and parent.take_back(record.id):
            self._on_its_way.discard(record.id)

    async def pending(self, session_key: str) -> list[tuple[str, DeliveredMessage]]:
        """What a run of this session has to begin with; each is `confirm`ed or `give`n `_back`."""
        found: list[tuple[str, DeliveredMessage]] = []
        left = self._left.get(session_key, [])
        for task_id in [t for t in left if t not in self._on_its_way]:
            left.remove(task_id)
            record = await self._store.get(task_id)
            if record is not None and record.awaits_delivery:
                self._on_its_way.add(task_id)
                found.append((task_id, message_of(record, "next_run")))
        return found

    async def recover(self) -> None:
        """Deliver what a runtime before this one did not."""
        async with anyio.create_task_group() as tasks:
            for record in await self._store.all():
                tasks.start_soon(self.deliver, record)

    def _to_living(self, record: TaskRecord) -> bool:
        parent = self._parent(record)
        if parent is None or record.queue_mode not in ("steer", "steer_backlog", "followup"):
            return False
        is_steer = record.queue_mode != "followup"
        message = message_of(record, "live_steer" if is_steer else "live_followup")
        return parent.hand_over(record.id, message, is_steer)

    def _parent(self, record: TaskRecord) -> LiveRun | None:
        return self._live.get(record.parent_run_id) or self._live.of_session(
            record.parent_session_key
        )

    async def _to_router(self, record: TaskRecord) -> None:
        try:
            # Whether it is still valid is the router's to judge, at the moment it arrives.
            context = ExecutionContext.from_wire(record.context, now_ms=0)
        except ContextRejected as exc:
            log.warning("followup.no_context", task_id=record.id, reason=exc.code)
            return
        left = self._left.setdefault(record.parent_session_key, [])
        if record.id in left:
            return  # somebody delivers it already
        left.append(record.id)
        for delay_ms in RETRY_DELAYS_MS:
            if delay_ms:
                await self._clock.sleep(delay_ms)
            if record.id not in left:
                return  # a run of the session has it by now
            current = await self._store.get(record.id)
            if current is None or not current.awaits_delivery:
                left.remove(record.id)
                return
            # Meanwhile no run may begin with it: the one that is being submitted is it.
            self._on_its_way.add(record.id)
            try:
                reason = await self._submit(record, context)
                if reason is None:
                    left.remove(record.id)
                    await self._store.claim(record.id)
                    return
            finally:
                self._on_its_way.discard(record.id)
            log.warning("followup.not_taken", task_id=record.id, reason=reason)

    async def _submit(self, record: TaskRecord, context: ExecutionContext) -> str | None:
        """None when the router has it, else why not."""
        reason: str | None = None
        for agent_id in dict.fromkeys((record.parent_agent_id, DEFAULT_AGENT)):
            request = self._request(record, context, agent_id)
            result = await self._router.submit_run(request)
            if result.status == "accepted":
                return None
            if result.status == "outcome_unknown":
                known = await self._router.admission(followup_run_id(record.id))
                return None if known is not None else result.reason or result.status
            reason = result.reason or result.status
            if "unknown_agent_id" not in reason:
                break
        return reason

    def _request(self, record: TaskRecord, context: ExecutionContext, agent_id: str) -> RunRequest:
        mode = "followup" if record.queue_mode.startswith("steer") else record.queue_mode
        flag = "task_auto_followup" if record.kind == "task" else "delegated_auto_followup"
        return RunRequest.normalize(
            {
                "origin": "node",
                "session_key": record.parent_session_key,
                "agent_id": agent_id,
                "prompt": text_of(record),
                "queue_mode": mode,
                "execution_context": context,
                "run_id": followup_run_id(record.id),
                "meta": {
                    "auto_resume": True,
                    flag: True,
                    "async_followups": [details_of(record, "router")],
                },
            }
        )


def followup_run_id(task_id: str) -> str:
    """The run that tells of a task's end: always the same one for the same task."""
    return f"run_{uuid.uuid5(_NAMESPACE, task_id)}"


def message_of(record: TaskRecord, delivery: str) -> DeliveredMessage:
    """The end of a task as a message of the parent's conversation."""
    return DeliveredMessage.of(text_of(record), details_of(record, delivery))


def details_of(record: TaskRecord, delivery: str) -> dict[str, object]:
    """Where a result comes from."""
    return {
        "source": record.kind,
        "task_id": record.id,
        "run_id": record.run_id,
        "agent_id": record.agent_id,
        "session_key": record.session_key,
        "status": record.status,
        "delivery": delivery,
    }


def text_of(record: TaskRecord) -> str:
    """How a task ended, in words."""
    head = f"Task {record.id} ({record.description}): {record.status}"
    if record.status == "completed":
        return f"{head}\n\n{record.result or '(no answer)'}"
    so_far = f"\n\nAnswer so far:\n{record.result}" if record.result else ""
    return f"{head}: {record.error or 'no reason was given'}{so_far}"


def report(records: Sequence[TaskRecord]) -> str:
    """Several tasks, one after the other."""
    return "\n\n".join(map(text_of, records))
