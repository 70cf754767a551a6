"""Runs that a run starts: they live in this process, with less authority, and end with a record.

Every child belongs to the component's task group and not to its parent's task: it may outlive the
run that asked. It ends when its time is up, when its parent is aborted, and with the runtime.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Literal

import anyio
from anyio.abc import TaskGroup

from coding_agent.child import Child, ChildSpec, MakeRun, SpawnRefused, child_meta
from coding_agent.child_authority import child_context, require_room
from coding_agent.child_events import ChildEvents, ChildSink
from coding_agent.followups import Followups
from coding_agent.live_runs import LiveRun, LiveRuns
from coding_agent.tasks import TaskRecord, TaskStatus, TaskStore
from lemon_core import ids
from lemon_core.actions import ChildBinding
from lemon_core.bridges import RouterBridge
from lemon_core.bus import Bus
from lemon_core.clock import Clock, within
from lemon_core.errors import LemonError
from lemon_core.events import Completion
from lemon_core.logs import get_logger
from lemon_core.resume import session_conversation
from lemon_core.runs import RunRequest
from lemon_core.session_key import main as main_key
from lemon_gateway.executor import RunOptions
from lemon_gateway.requests import ExecutionRequest

log = get_logger(__name__)

STOP_WAIT_S: Final = 5.0
SWEEP_EVERY_MS: Final = 300_000
JoinMode = Literal["wait_all", "wait_any"]


class Children:
    """All children of a runtime. `running` opens it; without that nothing can be started."""

    def __init__(
        self,
        store: TaskStore,
        followups: Followups,
        live: LiveRuns,
        router: RouterBridge,
        bus: Bus,
        clock: Clock,
        *,
        max_children: int,
        lane: int,
    ) -> None:
        self._store, self.followups, self.live = store, followups, live
        self._router, self._bus, self._clock = router, bus, clock
        self._events = ChildEvents(bus)
        self._swept_at_ms = clock.now_ms()
        self._max_children = max_children
        self._lane = anyio.Semaphore(lane)
        self._children: dict[str, Child] = {}
        self._tasks: TaskGroup | None = None
        self._make_run: MakeRun | None = None

    @asynccontextmanager
    async def running(self, make_run: MakeRun, *, recovers: bool = True) -> AsyncIterator[None]:
        """Children can be started for the block; leaving it aborts them and waits.

        `recovers`: what an earlier runtime has left is ended and told. Not where other runtimes
        share the store: their tasks live.
        """
        async with anyio.create_task_group() as tasks:
            self._tasks, self._make_run = tasks, make_run
            if recovers:
                tasks.start_soon(self._recover)
            try:
                yield
            finally:
                self._tasks = None
                with anyio.move_on_after(STOP_WAIT_S, shield=True):
                    # The next runtime tells how these ended.
                    await self.abort(tuple(self._children), is_unwanted=False)
                tasks.cancel_scope.cancel()

    async def _recover(self) -> None:
        try:
            await self._store.mark_lost()
            await self._store.sweep()
            await self.followups.recover()
        except Exception:  # what was left behind must not keep new work from its start
            log.exception("children.recovery_failed")

    # -- starting ----------------------------------------------------------------------------

    async def start_task(self, parent: LiveRun, spec: ChildSpec) -> Child:
        """Start a child in this process; it may have to wait for its turn.

        Raises `SpawnRefused` when the parent may not have it.
        """
        make_run = self._make_run
        if make_run is None or self._tasks is None:
            raise SpawnRefused("the agent is shutting down")
        task_id = f"task_{ids.new_uuid()[:8]}"
        agent_id = parent.context.lineage.agent_id
        key = spec.session_key or main_key(agent_id, sub_id=task_id)
        context = child_context(
            parent, spec, key, max_children=self._max_children, now_ms=self._clock.now_ms()
        )
        child = await self._enter(parent, spec, "task", task_id, context.run_id, key, agent_id)
        request = ExecutionRequest(
            run_id=context.run_id,
            session_key=key,
            prompt=spec.prompt,
            conversation_key=session_conversation(key),
            execution_context=context,
            cwd=context.workspace.cwd,
            lane="subagent",
            meta=child_meta(parent, spec),
        )
        options = RunOptions(context.run_id, context.workspace.cwd)

        async def work() -> None:
            run = make_run(request, options, ChildSink(self._events, child))
            child.stop = run.cancel
            await within(self._clock, spec.timeout_ms, run.run)

        # A child's own child does not wait for a turn: its parent holds one meanwhile.
        is_nested = parent.context.lineage.depth > 0
        self._tasks_now().start_soon(self._live, child, parent, work, is_nested)
        return child

    async def start_agent(self, parent: LiveRun, spec: ChildSpec, agent_id: str) -> Child:
        """Have another agent work, by way of the router; raises `SpawnRefused`."""
        key = spec.session_key
        assert key is not None
        tasks = self._tasks_now()
        require_room(parent, self._max_children)
        task_id = f"task_{ids.new_uuid()[:8]}"
        run_id = ids.run_id()
        request = RunRequest.normalize(
            {
                "origin": "node",
                "session_key": key,
                "agent_id": agent_id,
                "prompt": spec.prompt,
                "queue_mode": spec.meta.get("run_queue_mode") or "collect",
                "model": spec.model,
                "cwd": spec.cwd,
                "tool_policy": spec.policy,
                "execution_context": parent.context,
                "run_id": run_id,
                "meta": {"auto_resume": True, "parent_run_id": parent.run_id},
            }
        )
        child = await self._enter(parent, spec, "agent", task_id, run_id, key, agent_id)

        async def stop() -> None:
            await self._router.abort_run(run_id, "parent_aborted")

        async def work() -> None:
            child.stop = stop
            with self._bus.watch_run(run_id) as waiter:
                taken = await self._router.submit_run(request)
                if taken.status in ("rejected", "unavailable"):
                    child.completion = Completion(ok=False, error=taken.reason or taken.status)
                    return
                end = await within(
                    self._clock, spec.timeout_ms, lambda: waiter.completion(spec.timeout_ms)
                )
            if end == "timeout":
                raise TimeoutError
            child.completion = end

        tasks.start_soon(self._live, child, parent, work, True)
        return child

    async def _enter(
        self,
        parent: LiveRun,
        spec: ChildSpec,
        kind: Literal["task", "agent"],
        task_id: str,
        run_id: str,
        key: str,
        agent_id: str,
    ) -> Child:
        parent.children_started += 1
        lineage = parent.context.lineage
        record = TaskRecord(
            id=task_id,
            kind=kind,
            run_id=run_id,
            parent_run_id=parent.run_id,
            parent_session_key=lineage.session_key,
            parent_agent_id=lineage.agent_id,
            agent_id=agent_id,
            session_key=key,
            description=spec.description,
            prompt=spec.prompt,
            created_at_ms=self._clock.now_ms(),
            role=spec.role,
            queue_mode=spec.queue_mode,
            wants_followup=spec.wants_followup,
            meta=dict(spec.meta),
            context=parent.context.to_wire(),
        )
        await self._store.add(record)
        self._sweep_now_and_then()
        child = Child(record, ChildBinding(run_id, task_id, spec.tool_call_id))
        self._children[task_id] = child
        self._events.tell_graph(record)
        return child

    def _sweep_now_and_then(self) -> None:
        now = self._clock.now_ms()
        if now - self._swept_at_ms > SWEEP_EVERY_MS:
            self._swept_at_ms = now
            self._tasks_now().start_soon(self._swept)

    async def _swept(self) -> None:
        try:
            await self._store.sweep()
        except Exception:  # old records cost room and nothing else
            log.exception("children.sweep_failed")

    def _tasks_now(self) -> TaskGroup:
        if self._tasks is None:
            raise SpawnRefused("the agent is shutting down")
        return self._tasks

    # -- life --------------------------------------------------------------------------------

    async def _live(
        self, child: Child, parent: LiveRun, work: Callable[[], Awaitable[None]], is_free: bool
    ) -> None:
        status: TaskStatus = "aborted"
        error: str | None = "aborted"
        try:
            with child.scope:
                async with AsyncExitStack() as stack:
                    if not is_free:
                        await stack.enter_async_context(self._lane)
                    await self._begin(child)
                    await work()
                    status, error = _end_of(child)
        except TimeoutError:
            status, error = "timeout", "the time for this task is over"
        except Exception as exc:  # a child's fault is its own end, and nobody else's
            log.exception("children.crashed", task_id=child.record.id)
            status, error = "error", f"{type(exc).__name__}: {exc}"
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(child, parent, status, error)
        await self._told(child)

    async def _begin(self, child: Child) -> None:
        moved = await self._store.move(child.record.id, "running")
        child.record = moved or child.record
        self._events.tell("task_started", child.record)

    async def _end(
        self, child: Child, parent: LiveRun, status: TaskStatus, error: str | None
    ) -> None:
        if child.is_aborted and status != "completed":
            status, error = "aborted", "the task was aborted"
        completion = child.completion
        usage = None if completion is None else completion.usage
        if usage is not None:
            parent.add_child_usage(usage)
        try:
            moved = await self._store.move(
                child.record.id,
                status,
                result=None if completion is None else completion.answer,
                error=error,
                usage=usage,
            )
            child.record = moved or child.record
            if child.is_unwanted:
                await self._store.claim(child.record.id)
        except LemonError:
            log.exception("children.end_not_stored", task_id=child.record.id)
        self._children.pop(child.record.id, None)
        child.ended.set()
        self._events.tell(f"task_{status}", child.record)

    async def _told(self, child: Child) -> None:
        """Deliver the result of a task that nobody waits for; an abort needs no telling."""
        if child.joiners or child.is_aborted:
            return
        try:
            await self.followups.deliver(child.record)
        except LemonError:
            log.exception("children.not_delivered", task_id=child.record.id)

    async def abort(self, task_ids: Sequence[str], *, is_unwanted: bool = True) -> None:
        """Stop these tasks and wait until nothing of them is left, at most 5 s."""
        children = [child for task_id in task_ids if (child := self._children.get(task_id))]
        for child in children:
            child.is_aborted, child.is_unwanted = True, is_unwanted
            if child.stop is not None:
                await child.stop()
            else:
                child.scope.cancel()
        with anyio.move_on_after(STOP_WAIT_S):
            for child in children:
                await child.ended.wait()
        for child in children:
            child.scope.cancel()

    async def abort_of(self, run_id: str) -> None:
        """Stop what a run has started and its children in turn: it was aborted itself."""
        mine = [c.record.id for c in self._children.values() if c.record.parent_run_id == run_id]
        await self.abort(mine)

    # -- results -----------------------------------------------------------------------------

    async def wait(self, task_ids: Sequence[str], mode: JoinMode, timeout_ms: int) -> None:
        """Return when all of these tasks, or one of them, have ended, when one has a question, or
        when the time is over."""
        running = [child for task_id in task_ids if (child := self._children.get(task_id))]
        if not running or (mode == "wait_any" and len(running) < len(task_ids)):
            return
        for child in running:
            child.joiners += 1
        try:
            await within(self._clock, timeout_ms, lambda: _all_or_any(running, mode))
        except TimeoutError:
            pass
        finally:
            for child in running:
                child.joiners -= 1

    async def take(self, task_id: str) -> TaskRecord | None:
        """The task; when it has ended, its result counts as read and is not delivered again."""
        record = await self._store.get(task_id)
        if record is not None and record.has_ended:
            self.followups.take_back(record)
            await self._store.claim(task_id)
        return record

    async def release(self, task_ids: Sequence[str]) -> None:
        """Deliver what ended while somebody waited who then did not take it."""
        for task_id in task_ids:
            record = await self._store.get(task_id)
            if record is not None and self._tasks is not None and record.awaits_delivery:
                self._tasks.start_soon(self.followups.deliver, record)

    def give_back(self, task_id: str) -> None:
        """The run that was to read this result has ended without: deliver it otherwise."""
        if self._tasks is not None:
            self._tasks.start_soon(self.followups.give_back, task_id)

    async def get(self, task_id: str) -> TaskRecord | None:
        """The task as it is."""
        return await self._store.get(task_id)

    async def all(self) -> list[TaskRecord]:
        """Every task of the last day."""
        return await self._store.all()

    def living(self, task_id: str) -> Child | None:
        """The task, while it has not ended."""
        return self._children.get(task_id)

    def of_run(self, run_id: str) -> Child | None:
        """The task that a run works on, while it lives."""
        found = (c for c in self._children.values() if c.record.run_id == run_id)
        return next(found, None)


async def _all_or_any(children: Sequence[Child], mode: JoinMode) -> None:
    async with anyio.create_task_group() as tasks:
        left = len(children)

        async def end(child: Child) -> None:
            nonlocal left
            await child.ended.wait()
            left -= 1
            if mode == "wait_any" or left == 0:
                tasks.cancel_scope.cancel()

        async def question(child: Child) -> None:
            await child.asked.wait()
            tasks.cancel_scope.cancel()

        for child in children:
            tasks.start_soon(end, child)
            tasks.start_soon(question, child)


def _end_of(child: Child) -> tuple[TaskStatus, str | None]:
    completion = child.completion
    if completion is None:
        return "error", "it ended without a word"
    if completion.ok:
        return "completed", None
    return "error", _words(completion.error)


def _words(error: object) -> str:
    if isinstance(error, Mapping):
        return f"{error.get('code')}: {error.get('message')}"
    return str(error)
