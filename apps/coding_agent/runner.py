"""One run inside the executor, from its request to its one completion.

The gateway awaits `run`, so nothing of a run lives outside of it. Steering and cancelling come from
other tasks and only leave a mark; what they mean is done in `run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import anyio
from anyio.abc import TaskGroup

from coding_agent.approval_actions import ApprovalActions
from coding_agent.compaction import compaction_for
from coding_agent.delivered import DeliveredMessage
from coding_agent.live_runs import LiveRun
from coding_agent.outgoing import Outgoing
from coding_agent.recorder import Recorder
from coding_agent.run_plan import RunPlan, clean_text, make_plan
from coding_agent.services import Services
from coding_agent.session_store import SessionFile
from coding_agent.translator import CANCELLED_BY_USER, RunTranslator
from lemon_agent import Agent, AgentEvent, EventSubscription, MessageEnd
from lemon_ai import AIError
from lemon_core.approvals import TOPIC
from lemon_core.bus import Subscription
from lemon_core.errors import LemonError
from lemon_core.events import Action, ErrorValue
from lemon_core.logs import get_logger
from lemon_core.resume import NATIVE_ENGINE, ResumeToken
from lemon_gateway.executor import RunOptions, Sink, SteerResult
from lemon_gateway.requests import EngineAction, EngineStarted, ExecutionRequest, SinkMessage

log = get_logger(__name__)

# A reader that has gone must not keep the end of a run.
LAST_WORDS_S: Final = 1.0
TASK_CANCELLED: Final = "Cancelled: task_cancelled"


class Runner:
    """The control that the executor's calls carry; `run` is the run's `done`."""

    def __init__(
        self, request: ExecutionRequest, opts: RunOptions, sink: Sink, services: Services
    ) -> None:
        self.run_ref = request.run_id
        self._request, self._opts = request, opts
        self._sink, self._services = sink, services
        self._translator = RunTranslator(self.run_ref)
        self._preparing = anyio.CancelScope()
        self._session: SessionFile | None = None
        self._recorder: Recorder | None = None
        self._agent: Agent | None = None
        self._early: list[str] = []
        # Results that the agent has been given and has not read yet.
        self._handed: dict[int, tuple[str, DeliveredMessage]] = {}
        self._has_begun = False
        self._is_cancelled = False
        self._is_over = False

    # -- control -----------------------------------------------------------------------------

    async def cancel(self) -> None:
        """Stop the run; may be called at any time and any number of times."""
        if self._is_over:
            return
        self._is_cancelled = True
        if not self._has_begun:
            await self._complete(CANCELLED_BY_USER)
            return
        self._preparing.cancel()
        if self._agent is not None:
            self._agent.abort()

    def steer(self, text: str) -> SteerResult:
        """Have the model read `text` after the tools that run now."""
        agent = self._agent
        if self._is_over or self._is_cancelled or (agent is not None and agent.is_idle):
            return "error"
        if agent is None:
            self._early.append(clean_text(text))
        else:
            agent.steer(clean_text(text))
        return "ok"

    def redirect(self, text: str) -> SteerResult:
        """Give up the model call in flight, if any, and have the model read `text` at once."""
        agent = self._agent
        if agent is None or agent.is_idle or self._is_cancelled:
            return self.steer(text)
        agent.redirect(clean_text(text))
        return "ok"

    # -- life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live to the end; the completion is sent when nothing of the run is left."""
        if self._is_over:
            return
        self._has_begun = True
        failure: ErrorValue = TASK_CANCELLED  # unless it comes to its end by itself
        try:
            failure = await self._attempt()
        finally:
            with anyio.CancelScope(shield=True):
                if self._is_cancelled or failure == TASK_CANCELLED:
                    await self._services.children.abort_of(self.run_ref)
                await self._complete(failure)

    async def _attempt(self) -> ErrorValue:
        """None when the agent's own events tell how the run ended."""
        try:
            with self._preparing:
                plan = await make_plan(self._request, self._opts, self._services)
            if self._is_cancelled:
                return CANCELLED_BY_USER
            self._session = plan.session
            await self._converse(plan)
        except Exception as exc:  # whatever breaks is this run's end, and nobody else's
            return _error_of(exc, self._request.run_id)
        return None

    async def _converse(self, plan: RunPlan) -> None:
        recorder = self._recorder = Recorder(plan.session, plan.recall, self._outgoing(plan))
        compact = compaction_for(
            plan.config,
            self._services.settings.compaction,
            recorder.keep_compaction,
            self._translator.count_usage,
        )
        parent = self._as_parent(plan)
        config = replace(
            plan.config,
            transform_context=recorder.before_model_call,
            compact=compact,
            spent_elsewhere=lambda: parent.children_used,
        )
        agent = Agent(
            config,
            system_prompt=plan.system_prompt,
            tools=[recorder.guarded(tool) for tool in plan.tools],
            messages=plan.history,
            follow_up_grace_ms=0,
        )
        events = agent.subscribe()
        actions = ApprovalActions(self.run_ref, plan.session.id, self._request.session_key)
        pending = await self._services.children.followups.pending(self._request.session_key)
        with (
            self._services.bus.subscribe(TOPIC) as questions,
            self._services.children.live.entered(parent),
        ):
            try:
                async with anyio.create_task_group() as tasks, agent:
                    await self._send(self._opening(plan))
                    tasks.start_soon(self._show_questions, questions, actions)
                    if plan.hooks is not None:
                        tasks.start_soon(plan.hooks.serve)
                    self._begin(agent, plan)
                    for task_id, message in pending:
                        self._hand_over(task_id, message, is_steer=True)
                    await self._follow(events, recorder, tasks)
                    questions.close()
                    if plan.hooks is not None:
                        plan.hooks.close()
            finally:
                # Ended from outside, the agent still says how its last steps ended.
                events.close()
                questions.close()
                with anyio.CancelScope(shield=True):
                    batch = await events.receive_batch()
                    answers = await questions.receive_batch()
                recorder.note(batch)
                read = self._read_results(batch)
                with anyio.CancelScope(shield=True):
                    await self._keep(recorder, read)
                self._give_back()
                last = actions.translate(answers) + self._translator.translate(batch)
                with anyio.move_on_after(LAST_WORDS_S, shield=True):
                    await self._send(last)

    def _outgoing(self, plan: RunPlan) -> Outgoing:
        return Outgoing(self._services.sessions.spill_dir(plan.session.id) / "arguments")

    def _begin(self, agent: Agent, plan: RunPlan) -> None:
        for text in self._early:
            agent.steer(text)
        agent.prompt([plan.prompt])
        self._agent = agent
        if self._is_cancelled:
            agent.abort()

    async def _follow(
        self, events: EventSubscription, recorder: Recorder, saving: TaskGroup
    ) -> None:
        """Tell and keep what the agent does, until it has ended."""
        while not self._translator.has_ended:
            batch = await events.receive_batch()
            messages = self._translator.translate(batch)
            # The last flush is the completion's own.
            is_new, read = recorder.note(batch), self._read_results(batch)
            must_save = is_new and not self._translator.has_ended
            if read or (must_save and not recorder.flush_at_once()):
                saving.start_soon(self._keep, recorder, read)
            await self._send(messages)

    # -- children ----------------------------------------------------------------------------

    def _as_parent(self, plan: RunPlan) -> LiveRun:
        model = plan.config.model
        return LiveRun(
            context=self._request.execution_context,
            session_id=plan.session.id,
            cwd=plan.config.cwd or "",
            model=f"{model.provider}:{model.id}",
            hand_over=lambda task_id, message, is_steer: self._hand_over(
                task_id, message, is_steer=is_steer
            ),
            notify=self._notify,
            take_back=self._take_back,
            count_usage=self._translator.count_child,
            used=self._translator.used,
            meta=self._request.meta,
            tools=self._tools_so_far,
            is_alive=self._is_alive,
        )

    def _tools_so_far(self) -> tuple[int, int]:
        recorder = self._recorder
        return (0, 0) if recorder is None else (recorder.tool_calls, recorder.tool_errors)

    def _is_alive(self) -> bool:
        agent = self._agent
        return agent is None or not agent.is_idle or self._translator.has_ended

    def _hand_over(self, task_id: str, message: DeliveredMessage, *, is_steer: bool) -> bool:
        """Give the agent a result to read; False when it reads nothing any more."""
        agent = self._agent
        if agent is None or agent.is_idle or self._is_cancelled or self._is_over:
            return False
        self._handed[id(message)] = (task_id, message)
        if is_steer:
            agent.steer(message)
        else:
            agent.follow_up(message)
        return True

    def _notify(self, message: DeliveredMessage) -> None:
        if self._agent is not None and not self._agent.is_idle:
            self._agent.steer(message)

    def _take_back(self, task_id: str) -> bool:
        for key, (known, message) in tuple(self._handed.items()):
            if known == task_id and self._agent is not None and self._agent.withdraw(message):
                del self._handed[key]
                return True
        return False

    def _read_results(self, events: Sequence[AgentEvent]) -> list[str]:
        """The tasks whose results became part of the conversation with these events."""
        ended = (event for event in events if isinstance(event, MessageEnd))
        found = (self._handed.pop(id(event.message), None) for event in ended)
        return [handed[0] for handed in found if handed is not None]

    async def _keep(self, recorder: Recorder, read: Sequence[str]) -> None:
        # On disk first: a result counts as delivered when no crash can lose it.
        if await recorder.flush():
            for task_id in read:
                await self._services.children.followups.confirm(task_id)

    def _give_back(self) -> None:
        handed, self._handed = self._handed, {}
        for task_id, _ in handed.values():
            self._services.children.give_back(task_id)

    async def _show_questions(self, questions: Subscription, actions: ApprovalActions) -> None:
        while batch := await questions.receive_batch():
            await self._send(actions.translate(batch))

    # -- messages ----------------------------------------------------------------------------

    def _opening(self, plan: RunPlan) -> list[SinkMessage]:
        model = plan.config.model
        started = EngineStarted(
            self.run_ref,
            resume=self._resume(),
            meta={
                "cwd": plan.config.cwd,
                "model": model.id,
                "provider": model.provider,
            },
        )
        if plan.notice is None:
            return [started]
        action = Action(id="lemon.model_notice", kind="note", title=plan.notice)
        return [started, EngineAction(self.run_ref, action, "completed", ok=True)]

    async def _complete(self, failure: ErrorValue) -> None:
        """Save, and send the one completion."""
        if self._is_over:
            return
        self._is_over = True
        last: list[SinkMessage] = []
        if self._session is not None and (label := self._request.meta_text("label")):
            self._session.label(clean_text(label))
        if self._recorder is not None and not await self._recorder.flush():
            title = "This conversation could not be saved as a whole: see the log."
            action = Action(id="lemon.session_notice", kind="note", title=title)
            last.append(EngineAction(self.run_ref, action, "completed", ok=False, level="warning"))
        # The agent's own last event tells more than the way its task ended.
        known = None if self._translator.has_ended else failure
        completion = self._translator.complete(self._resume(), known)
        if completion is not None:
            last.append(completion)
        with anyio.move_on_after(LAST_WORDS_S):
            await self._send(last)

    def _resume(self) -> ResumeToken | None:
        if self._session is None:
            return None
        return ResumeToken(engine=NATIVE_ENGINE, value=self._session.id)

    async def _send(self, messages: Sequence[SinkMessage]) -> None:
        for message in messages:
            await self._sink.send(message)


def _error_of(exc: Exception, run_id: str) -> ErrorValue:
    inner: BaseException = exc
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    if isinstance(inner, LemonError | AIError):
        return {"code": inner.code, "message": str(inner)}
    log.exception("run.crashed", run_id=run_id)
    return f"Session terminated: {type(inner).__name__}: {inner}"
