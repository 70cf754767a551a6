"""The conversation itself: lines of the person become runs, and runs become what is shown."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVarTuple, Unpack

import anyio
from anyio.abc import TaskGroup

from lemon_cli.access import Refused
from lemon_cli.chat.answers import decision_of
from lemon_cli.chat.attachments import Attached, BadImage, named_images
from lemon_cli.chat.screen import Answered, Input, Interrupted, Left, Line, Screen, Stopped
from lemon_cli.chat.service import ChatService
from lemon_cli.chat.shown import Note, Shown
from lemon_cli.chat.slash import Call, Unknown, parse
from lemon_cli.chat.transcript import Transcript, Turn
from lemon_cli.errors import ExitCode
from lemon_core.bridges import SubmitResult
from lemon_core.errors import LemonError
from lemon_core.events import EngineStarted, Event, RunAbsorbed, RunCompleted, RunStarted
from lemon_core.ids import run_id as new_run_id
from lemon_core.runs import QueueMode, RunRequest

ABORTED: Final = "user_requested"
FAREWELL_S: Final = 5.0
LEAVE_HINT: Final = "Ctrl+C again leaves"

Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class Settings:
    """What the next message is sent with. `model` and `thinking` are for this chat alone.

    `own_commands` are the names of commands that the user has written: the agent reads them.
    """

    session_key: str
    agent: str | None
    model: str | None
    thinking: str | None
    cwd: Path
    home: Path
    own_commands: Callable[[], Collection[str]] = tuple
    mode: QueueMode = "collect"
    images: list[Attached] = field(default_factory=list)


class Commands(Protocol):
    """What a conversation can do besides talking; raises `LemonError`."""

    async def welcome(self, chat: Conversation) -> None:
        """Say which session this is, and how far it got."""

    async def carry_out(self, chat: Conversation, call: Call, tasks: TaskGroup) -> None:
        """Do what a command asks for."""


class Conversation:
    """One chat; `serve` returns the exit code.

    `windows` gives the context window of a model, and may take its time (it runs in a thread).
    `commands` are the slash commands that send nothing.
    """

    def __init__(
        self,
        service: ChatService,
        screen: Screen,
        transcript: Transcript,
        settings: Settings,
        *,
        windows: Callable[[str], int | None],
        commands: Commands,
    ) -> None:
        self.service, self.screen = service, screen
        self.transcript, self.settings = transcript, settings
        self._windows, self._commands = windows, commands
        self._is_leaving = False
        self._changed = anyio.Event()
        # Messages reach the router in the order in which they were written.
        self._sending = anyio.Lock()
        self._code = ExitCode.OK

    async def serve(self) -> int:
        """Talk until the person leaves."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.contained, self._commands.welcome, self)
            async with self.screen.inputs() as inputs:
                async for event in inputs:
                    if not self._take(event, tasks):
                        break
                await self._farewell()
            tasks.cancel_scope.cancel()
        return self._code

    async def _farewell(self) -> None:
        """What was sent has arrived, what was to end has ended; the rest goes on in a server."""
        if not self.service.outlives:
            return
        with anyio.move_on_after(FAREWELL_S):
            await self._until(lambda turn: turn.stage != "sending")
            for turn in [turn for turn in self.transcript.turns.values() if turn.abort_asked]:
                # The first request may not have got so far.
                await self.contained(self.service.abort, turn.run_id, ABORTED)
            await self._until(lambda turn: not turn.abort_asked)
        count = len(self.transcript.turns)
        if count:
            what = "the run goes" if count == 1 else f"{count} runs go"
            self.show([Note(f"{what} on in the server (lemon runs list --active)")])

    async def _until(self, is_so: Callable[[Turn], bool]) -> None:
        """Wait until it is so for every turn."""
        while not all(map(is_so, self.transcript.turns.values())):
            await self._changed.wait()

    def show(self, shown: Iterable[Shown]) -> None:
        """Show these, and what is going on now."""
        self.screen.show(shown)
        self.screen.refresh()
        self._changed.set()
        self._changed = anyio.Event()

    # -- what the person does ----------------------------------------------------------------

    def _take(self, event: Input, tasks: TaskGroup) -> bool:
        """Begin what an input asks for; False when the person leaves."""
        match event:
            case Left():
                return False
            case Interrupted():
                return self._interrupt(tasks)
            case Stopped():
                self._stop(tasks)
            case Answered(approval_id=approval_id, decision=decision):
                tasks.start_soon(self.contained, self._answer, approval_id, decision)
            case Line(text=text):
                self._is_leaving = False
                return self._line(text.strip(), tasks)
        return True

    def _interrupt(self, tasks: TaskGroup) -> bool:
        if self._is_leaving:
            self._code = ExitCode.INTERRUPTED
            return False
        self._is_leaving = True
        if self.transcript.turns:
            self.abort(tasks)
        else:
            self.show([Note(LEAVE_HINT)])
        return True

    def _stop(self, tasks: TaskGroup) -> None:
        turn = self.transcript.active
        # Pressed again out of impatience, it must not take what waits.
        if turn is not None and not turn.abort_asked:
            self.abort(tasks, "aborting")

    def _line(self, text: str, tasks: TaskGroup) -> bool:
        if not text:
            self.screen.refresh()
            return True
        question = self.transcript.live().question
        decision = None if question is None else decision_of(text, question)
        if question is not None and decision is not None:
            tasks.start_soon(self.contained, self._answer, question.id, decision)
            return True
        match parse(text):
            case Call(name="quit"):
                return False
            case Call(name="steer" | "interrupt" as mode, rest=rest):
                if rest:
                    self.send(rest, tasks, mode="steer" if mode == "steer" else "interrupt")
                else:
                    self.show([Note(f"/{mode} needs a text", "error")])
            case Call() as call:
                tasks.start_soon(self.contained, self._commands.carry_out, self, call, tasks)
            case Unknown(name=name) if name in self.settings.own_commands():
                self.send(text, tasks)
            case Unknown(name=name, close=close):
                hint = f"did you mean /{close}?" if close else "/help lists the commands"
                self.show([Note(f"unknown command /{name}: {hint}", "error")])
            case None:
                self.send(text[1:] if text.startswith("//") else text, tasks)
        return True

    async def contained(
        self, work: Callable[[Unpack[Ts]], Awaitable[object]], *arguments: *Ts
    ) -> None:
        """Await `work`; what it raises becomes a line, for the conversation goes on."""
        try:
            await work(*arguments)
        except LemonError as exc:
            self.show([Note(str(exc), "error")])
        self.screen.refresh()

    async def _answer(self, approval_id: str, decision: str) -> None:
        if not await self.service.answer(approval_id, decision):
            self.show([Note("this question has an answer already, or is open no more", "warning")])

    # -- runs --------------------------------------------------------------------------------

    def send(self, text: str, tasks: TaskGroup, mode: QueueMode | None = None) -> None:
        """Send a message: now, or to the run that works."""
        settings = self.settings
        try:
            images = [*settings.images, *named_images(text, settings.cwd, settings.home)]
        except BadImage as exc:
            self.show([Note(str(exc), "error")])
            return
        settings.images = []
        mode = mode or settings.mode
        request = self._request(text, mode, images)
        assert request.run_id is not None  # fixed by _request
        self.show(self.transcript.sent(request.run_id, text, tuple(i.name for i in images)))
        tasks.start_soon(self._run, request, tasks)

    def _request(self, text: str, mode: QueueMode, images: list[Attached]) -> RunRequest:
        settings = self.settings
        meta: dict[str, object] = {"auto_resume": True, "approvals": "ask"}
        if settings.thinking is not None:
            meta["thinking_level"] = settings.thinking
        return RunRequest.normalize(
            {
                "run_id": new_run_id(),
                "session_key": settings.session_key,
                "agent_id": settings.agent,
                "prompt": text,
                "queue_mode": mode,
                "model": settings.model,
                "cwd": str(settings.cwd),
                "images": [each.image for each in images],
                "meta": meta,
            }
        )

    async def _run(self, request: RunRequest, tasks: TaskGroup) -> None:
        """Send a message and show what becomes of it."""
        run_id = request.run_id
        assert run_id is not None  # fixed by _request
        await self._sending.acquire()
        is_sending = True

        def taken(result: SubmitResult) -> None:
            nonlocal is_sending
            is_sending = False
            self._sending.release()
            self.show(self.transcript.taken(run_id, result))

        try:
            async with aclosing(self.service.run(request, taken)) as events:
                await self._show(run_id, events, tasks)
        except Refused as exc:
            detail = (exc.result.detail or {}).get("message")
            reason = str(detail or exc.result.reason or exc.result.status)
            self.show(self.transcript.lost(run_id, f"not taken: {reason}"))
        except LemonError as exc:
            self.show(self.transcript.lost(run_id, str(exc)))
        finally:
            if is_sending:
                self._sending.release()

    async def _follow(self, run_id: str, tasks: TaskGroup) -> None:
        """Show the run of somebody else that took a message."""
        try:
            async with aclosing(self.service.follow(run_id)) as events:
                await self._show(run_id, events, tasks)
        except LemonError as exc:
            self.show(self.transcript.lost(run_id, str(exc)))

    async def _show(
        self, run_id: str, events: AsyncGenerator[Event, None], tasks: TaskGroup
    ) -> None:
        async for event in events:
            payload = event.payload
            self.show(self.transcript.event(run_id, event))
            if isinstance(payload, RunStarted | EngineStarted):
                tasks.start_soon(self.learn_window)
            if isinstance(payload, RunAbsorbed):
                if payload.absorbed_by not in self.transcript.turns:
                    self.transcript.followed(payload.absorbed_by)
                    tasks.start_soon(self._follow, payload.absorbed_by, tasks)
                return
            if isinstance(payload, RunCompleted):
                return
        self.show(self.transcript.lost(run_id, "the run ended without an answer"))

    async def learn_window(self) -> None:
        """The context window of the model that answers, for the line after the turn."""
        model = self.transcript.model
        if model is not None and model not in self.transcript.windows:
            self.transcript.windows[model] = None
            self.transcript.windows[model] = await anyio.to_thread.run_sync(self._windows, model)
            self.screen.refresh()

    def abort(self, tasks: TaskGroup, told: str = f"aborting ({LEAVE_HINT})") -> None:
        """End the run that works, or else the first message that waits."""
        turn = self.transcript.active or next(iter(self.transcript.waiting), None)
        if turn is None:
            self.show([Note("nothing is running")])
            return
        turn.abort_asked = True
        tasks.start_soon(self.contained, self.service.abort, turn.run_id, ABORTED)
        self.show([Note(told)])

    async def drop(self) -> None:
        """Take back the messages that wait."""
        waiting = self.transcript.waiting
        if not waiting:
            self.show([Note("nothing waits")])
        for turn in waiting:
            turn.abort_asked = True
            await self.service.abort(turn.run_id, ABORTED)
