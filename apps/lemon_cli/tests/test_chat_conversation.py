"""The conversation between a screen and a service that are played by the test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from lemon_cli.access import Refused
from lemon_cli.chat.commands import SlashCommands
from lemon_cli.chat.conversation import Conversation, Settings
from lemon_cli.chat.screen import Answered, Input, Interrupted, Left, Line, Stopped
from lemon_cli.chat.shown import Block, Note, Said, Shown
from lemon_cli.chat.transcript import Transcript
from lemon_core.bridges import StreamLost, SubmitResult
from lemon_core.events import Completion, Delta, Event, PendingApproval, RunAbsorbed, RunCompleted
from lemon_core.router_views import SessionInfo, SessionView
from lemon_core.runs import RunRequest
from lemon_core.store.wrappers import SessionSettings, Unset

pytestmark = pytest.mark.anyio

KEY = "agent:default:main:sub:w"
ENDED = RunCompleted(completed=Completion(ok=True, answer="Hi"))
ABSORBED = RunAbsorbed(run_id="run_1", absorbed_by="run_of_others", mode="steer")


class UntilAborted:
    """A place in a play where the service waits for an abort."""


class PlayedService:
    """Answers each message with the next play: payloads, and an error to end with."""

    where, outlives, answerable = "the test", True, True

    def __init__(self, *plays: Sequence[object]) -> None:
        self._plays = list(plays)
        self.requests: list[RunRequest] = []
        self.told: list[tuple[str | None, ...]] = []
        self._aborted = anyio.Event()

    async def run(
        self, request: RunRequest, taken: Callable[[SubmitResult], None]
    ) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        play = self._plays.pop(0)
        if play and isinstance(play[0], SubmitResult):
            raise Refused(play[0])
        taken(SubmitResult("accepted", request.run_id, detail={"disposition": "started"}))
        async for event in self._play(play):
            yield event

    async def follow(self, run_id: str) -> AsyncGenerator[Event, None]:
        self.told.append(("follow", run_id))
        async for event in self._play(self._plays.pop(0)):
            yield event

    async def _play(self, play: Sequence[object]) -> AsyncGenerator[Event, None]:
        for payload in play:
            if isinstance(payload, Exception):
                raise payload
            if payload is UntilAborted:
                await self._aborted.wait()
                continue
            yield Event("played", 0, payload, {})

    async def answer(self, approval_id: str, decision: str) -> bool:
        self.told.append(("answer", approval_id, decision))
        return False

    async def abort(self, run_id: str, reason: str) -> None:
        self.told.append(("abort", run_id, reason))
        self._aborted.set()

    async def sessions(self, limit: int) -> list[SessionInfo]:
        return []

    async def session(self, session_key: str) -> SessionView | None:
        return None

    async def choose(
        self, session_key: str, *, model: str | Unset | None, thinking_level: str | Unset | None
    ) -> SessionSettings:
        raise AssertionError("not asked for here")

    async def questions(self) -> list[PendingApproval]:
        return []

    async def default_model(self) -> str | None:
        return None


class PlayedScreen:
    """Gives its inputs, each when what it waits for has been shown."""

    def __init__(self, *script: tuple[str, Input]) -> None:
        self._script = script
        self.shown: list[Shown] = []
        self._changed = anyio.Event()

    def show(self, shown: Iterable[Shown]) -> None:
        self.shown += shown
        self._changed.set()

    def refresh(self) -> None:
        self._changed.set()

    @asynccontextmanager
    async def inputs(self) -> AsyncIterator[AsyncIterator[Input]]:
        yield self._inputs()

    async def _inputs(self) -> AsyncGenerator[Input, None]:
        for wanted, event in self._script:
            with anyio.fail_after(5):
                while wanted not in str(self.shown):
                    self._changed = anyio.Event()
                    await self._changed.wait()
            yield event


async def talk(service: PlayedService, screen: PlayedScreen) -> int:
    settings = Settings(KEY, None, None, None, Path("/"), Path("/"), lambda: ["own"])
    chat = Conversation(
        service,
        screen,
        Transcript(),
        settings,
        windows=lambda model: None,
        commands=SlashCommands(),
    )
    with anyio.fail_after(5):
        return await chat.serve()


async def test_a_refused_message_says_why_and_the_conversation_goes_on() -> None:
    refused = SubmitResult("rejected", reason="queue_full", detail={"message": "the line is full"})
    service = PlayedService([refused], [ENDED])
    screen = PlayedScreen(("", Line("one")), ("full", Line("two")), ("'Hi'", Left()))
    assert await talk(service, screen) == 0
    assert Note("not taken: the line is full", "error") in screen.shown
    assert screen.shown.index(Said("two")) < screen.shown.index(Block("Hi"))


async def test_a_command_of_the_users_own_is_a_message() -> None:
    """Specification coding_agent 4."""
    service = PlayedService([ENDED])
    screen = PlayedScreen(("", Line("/nonsense x")), ("unknown", Line("/own x")), ("'Hi'", Left()))
    assert await talk(service, screen) == 0
    assert Said("/own x") in screen.shown
    assert any("unknown command /nonsense" in str(each) for each in screen.shown)


async def test_a_lost_stream_ends_the_turn_alone() -> None:
    service = PlayedService([StreamLost("run_1", "the server is gone")], [ENDED])
    screen = PlayedScreen(("", Line("one")), ("is gone", Line("two")), ("'Hi'", Left()))
    assert await talk(service, screen) == 0


async def test_a_stream_without_an_end_leaves_nothing_behind() -> None:
    service = PlayedService([Delta(run_id="run_1", seq=1, text="half")])
    screen = PlayedScreen(("", Line("one")), ("without an answer", Left()))
    assert await talk(service, screen) == 0
    assert Block("half") in screen.shown
    assert "goes on in the server" not in str(screen.shown)


async def test_a_run_of_others_that_took_the_message_is_shown() -> None:
    service = PlayedService([ABSORBED], [ENDED])
    screen = PlayedScreen(("", Line("one")), ("'Hi'", Left()))
    assert await talk(service, screen) == 0
    assert ("follow", "run_of_others") in service.told


async def test_ctrl_c_asks_for_the_end_and_a_second_one_leaves_when_it_has_come() -> None:
    failed = RunCompleted(completed=Completion(ok=False, error="user_requested"))
    service = PlayedService([Delta(run_id="run_1", seq=1, text="x"), UntilAborted, failed])
    # Both at once: the first request may not have got anywhere when the second key comes.
    screen = PlayedScreen(("", Line("one")), ("'x'", Interrupted()), ("", Interrupted()))
    assert await talk(service, screen) == 130
    assert ("abort", service.requests[0].run_id, "user_requested") in service.told
    assert screen.shown[-1] == Note("aborted", "warning")


async def test_esc_ends_the_run_once_and_never_leaves() -> None:
    failed = RunCompleted(completed=Completion(ok=False, error="user_requested"))
    service = PlayedService([Delta(run_id="run_1", seq=1, text="x"), UntilAborted, failed])
    screen = PlayedScreen(
        ("", Stopped()),
        ("", Line("one")),
        ("'x'", Stopped()),
        ("", Stopped()),
        ("'aborted'", Stopped()),
        ("", Left()),
    )
    assert await talk(service, screen) == 0
    assert [each[0] for each in service.told] == ["abort"]
    assert screen.shown.count(Note("aborting")) == 1


async def test_the_model_is_known_before_the_first_message() -> None:
    class Known(PlayedService):
        async def default_model(self) -> str | None:
            return "local:small (embedded; no key is set)"

    asked: list[str] = []
    transcript = Transcript()
    settings = Settings(KEY, None, None, None, Path("/"), Path("/"))
    screen = PlayedScreen(("session", Line("/status")), ("local:small", Left()))
    chat = Conversation(
        Known(), screen, transcript, settings, windows=asked.append, commands=SlashCommands()
    )
    with anyio.fail_after(5):
        assert await chat.serve() == 0
    assert transcript.model == "local:small"


async def test_a_message_after_ctrl_c_means_that_nobody_leaves() -> None:
    service = PlayedService([ENDED])
    screen = PlayedScreen(
        ("", Interrupted()),
        ("again leaves", Line("one")),
        ("'Hi'", Interrupted()),
        ("", Left()),
    )
    assert await talk(service, screen) == 0


async def test_an_answer_that_came_too_late_is_said() -> None:
    service = PlayedService()
    screen = PlayedScreen(("", Answered("apr_1", "deny")), ("has an answer already", Left()))
    assert await talk(service, screen) == 0
    assert service.told == [("answer", "apr_1", "deny")]


async def test_requests_carry_what_the_chat_is_about() -> None:
    service = PlayedService([ENDED], [ENDED])
    screen = PlayedScreen(
        ("", Line("//etc is what?")), ("'Hi'", Line("/steer now")), ("'now'", Left())
    )
    assert await talk(service, screen) == 0
    first = service.requests[0]
    assert (first.prompt, first.session_key, first.queue_mode) == ("/etc is what?", KEY, "collect")
    assert first.meta == {"auto_resume": True, "approvals": "ask"}
    assert service.requests[1].queue_mode == "steer"
