"""A conversation on a terminal: the input stays at the bottom, what was said scrolls above it.

What is shown is written once, above the input, and belongs to the terminal from then on: its
scrollback, search and copying work as anywhere. Only the lines of `live_view` and the input itself
are redrawn, and prompt_toolkit writes of those what has changed.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final, TextIO

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, get_common_complete_suffix
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from lemon_cli.chat.answers import decision_of
from lemon_cli.chat.completion import is_completing
from lemon_cli.chat.live_view import clipped, live_lines
from lemon_cli.chat.rich_painter import RichPainter
from lemon_cli.chat.screen import Answered, Input, Interrupted, Left, Line, Stopped
from lemon_cli.chat.shown import PROMPT, Shown
from lemon_cli.chat.slash import takes_more
from lemon_cli.chat.terminal import ColorSystem
from lemon_cli.chat.transcript import Transcript

MAX_WAITING_INPUTS: Final = 256
# More redraws in a second than a person sees only cost an SSH line.
REDRAW_S: Final = 0.04
MENU_LINES: Final = 6
# For so long an Esc may be the beginning of another key; over a slow line those arrive in pieces.
ESC_S: Final = 0.25
# For so long the terminal's answer about its cursor is waited for at the end.
CPR_S: Final = 1.0
# How often the time that a run takes is drawn.
TICK_S: Final = 1.0
# Terminals that know these show what comes between them at once; the others pass over them.
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
_DEPTHS: Final = {
    None: ColorDepth.DEPTH_1_BIT,
    "standard": ColorDepth.DEPTH_4_BIT,
    "256": ColorDepth.DEPTH_8_BIT,
    "truecolor": ColorDepth.DEPTH_24_BIT,
}
_COLORS: Final = {
    "prompt": "bold ansicyan",
    "step": "ansicyan",
    "dim": "ansibrightblack",
    "ask": "bold ansiyellow",
    "bottom-toolbar": "noreverse ansibrightblack",
}
_PLAIN: Final = {"prompt": "bold", "ask": "bold", "bottom-toolbar": "noreverse"}


class PromptScreen:
    """The terminal of this process; `status` is the line below the input."""

    def __init__(
        self,
        stdout: TextIO,
        transcript: Transcript,
        *,
        colors: ColorSystem | None,
        completer: Completer,
        history: History,
        status: Callable[[], str],
    ) -> None:
        self._stdout, self._transcript, self._status = stdout, transcript, status
        self._painter = RichPainter(colors)
        # Keys answer what has been seen: not a question that came up as they were pressed.
        self._seen_question: str | None = None
        self._pending: list[Shown] = []
        self._is_ending = False
        self._has_pending = anyio.Event()
        self._send: MemoryObjectSendStream[Input] | None = None
        self._session: PromptSession[None] = PromptSession(
            message=self._message,
            multiline=True,
            prompt_continuation="  ",
            completer=completer,
            complete_in_thread=True,
            complete_while_typing=Condition(self._is_completing),
            reserve_space_for_menu=MENU_LINES,
            history=history,
            key_bindings=self._keys(),
            bottom_toolbar=self._toolbar,
            style=Style.from_dict(_COLORS if colors else _PLAIN),
            include_default_pygments_style=False,
            color_depth=_DEPTHS[colors],
            erase_when_done=True,
        )
        self._session.app.min_redraw_interval = REDRAW_S
        self._session.app.ttimeoutlen = self._session.app.timeoutlen = ESC_S

    # -- what is shown -----------------------------------------------------------------------

    def show(self, shown: Iterable[Shown]) -> None:
        """Have these written above the input."""
        self._pending += shown
        self._has_pending.set()

    def refresh(self) -> None:
        """Redraw the lines above the input, soon."""
        self._session.app.invalidate()

    async def _print(self) -> None:
        app = self._session.app
        while True:
            await self._has_pending.wait()
            if app.output.responds_to_cpr:
                await app.renderer.wait_for_cpr_responses()
            if self._is_ending:
                return  # the rest is written when the input is gone
            self._has_pending = anyio.Event()
            if text := self._painted():
                self._print_above(text)

    def _print_above(self, text: str) -> None:
        """As prompt_toolkit's `in_terminal`, but the terminal stays raw.

        There what is typed meanwhile is echoed, and its Enter arrives as a line feed.
        """
        app = self._session.app
        self._write(BEGIN_UPDATE)
        app.renderer.erase()
        self._write(text)
        app.renderer.reset()
        app.renderer.request_absolute_cursor_position()
        # The public `invalidate` draws a little later: the input would blink.
        app._redraw()
        self._write(END_UPDATE)

    def _painted(self) -> str:
        shown, self._pending = self._pending, []
        return self._painter.paint(shown, self._size()[0])

    def _write(self, text: str) -> None:
        self._stdout.write(text)
        self._stdout.flush()

    def _size(self) -> tuple[int, int]:
        size = self._session.app.output.get_size()
        return max(20, size.columns - 1), size.rows

    def _message(self) -> StyleAndTextTuples:
        width, rows = self._size()
        height = max(2, min(12, rows // 3))
        live = self._transcript.live()
        self._seen_question = None if live.question is None else live.question.id
        after_steps = self._painter.is_after_step
        lines = live_lines(live, width=width, height=height, after_steps=after_steps)
        parts: StyleAndTextTuples = [(style, f"{text}\n") for style, text in lines]
        return [*parts, ("class:prompt", PROMPT)]

    def _toolbar(self) -> str:
        return clipped(self._status(), self._size()[0])

    # -- what the person does ----------------------------------------------------------------

    @asynccontextmanager
    async def inputs(self) -> AsyncIterator[AsyncIterator[Input]]:
        """Lines, keys and signals."""
        send, receive = anyio.create_memory_object_stream[Input](MAX_WAITING_INPUTS)
        self._send = send
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._prompt)
            tasks.start_soon(self._print)
            tasks.start_soon(self._signals)
            tasks.start_soon(self._tick)
            try:
                yield receive
            finally:
                await self._hear_out()
                tasks.cancel_scope.cancel()
        self._write(self._painted())

    async def _hear_out(self) -> None:
        """Where the cursor is was asked, and the answer is for us: not for the shell after us."""
        self._is_ending = True
        app = self._session.app
        if app.is_running and app.output.responds_to_cpr:
            with anyio.move_on_after(CPR_S, shield=True):
                await app.renderer.wait_for_cpr_responses()

    async def _prompt(self) -> None:
        """The input, until its end; keys do the rest."""
        with suppress(EOFError, KeyboardInterrupt):
            await self._session.prompt_async(set_exception_handler=False)
        self._put(Left())

    async def _signals(self) -> None:
        # SIGINT is a key: prompt_toolkit sees to it.
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            async for _ in signals:
                self._put(Left())

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(TICK_S)
            if self._transcript.turns:
                self.refresh()

    def _put(self, event: Input) -> None:
        assert self._send is not None  # keys come while inputs() is entered
        try:
            self._send.send_nowait(event)
        except anyio.WouldBlock:
            # Hundreds of inputs wait: the bell says that this one was not taken.
            self._session.app.output.bell()

    def _is_completing(self) -> bool:
        return is_completing(self._session.default_buffer.document.text_before_cursor)

    def _is_asked(self) -> bool:
        question = self._transcript.live().question
        is_typing = bool(self._session.default_buffer.text)
        return question is not None and question.id == self._seen_question and not is_typing

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        is_asked = Condition(self._is_asked)
        keys.add("enter")(self._enter)
        keys.add("tab")(_complete)
        keys.add("escape")(self._escape)
        for newline in (("escape", "enter"), ("c-j",)):
            keys.add(*newline)(_new_line)
        for stop in ("c-c", "<sigint>"):
            keys.add(stop, eager=True)(self._stop)
        keys.add("c-d", eager=True)(self._leave)
        for digit in "1234":
            keys.add(digit, filter=is_asked, eager=True)(self._answer)
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion:
            # It stands in the text already: Enter ends the choosing.
            buffer.complete_state = None
        elif buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif buffer.text.strip():
            # What the keyboard sent as no UTF-8 could be neither stored nor sent.
            text = buffer.text = buffer.text.encode(errors="replace").decode()
            buffer.append_to_history()
            buffer.reset()
            self._put(Line(text))

    def _stop(self, event: KeyPressEvent) -> None:
        if event.current_buffer.text and not self._transcript.turns:
            event.current_buffer.reset()
        else:
            self._put(Interrupted())

    def _leave(self, event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.delete()
        else:
            self._put(Left())

    def _escape(self, event: KeyPressEvent) -> None:
        if event.current_buffer.complete_state is not None:
            event.current_buffer.cancel_completion()
        elif self._is_asked():
            self._decide("n")
        elif self._transcript.turns:
            self._put(Stopped())

    def _answer(self, event: KeyPressEvent) -> None:
        self._decide(event.data)

    def _decide(self, key: str) -> None:
        question = self._transcript.live().question
        decision = None if question is None else decision_of(key, question)
        if question is not None and decision is not None:
            self._put(Answered(question.id, decision))


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _complete(event: KeyPressEvent) -> None:
    """Complete at once: who types fast presses Tab before the menu is there.

    The only candidate is taken, and Enter sends it; of several, what they have in common.
    """
    buffer = event.current_buffer
    if buffer.complete_state is not None and buffer.complete_state.current_completion:
        buffer.complete_next()
        return
    document = buffer.document
    wanted = CompleteEvent(completion_requested=True)
    found = list(buffer.completer.get_completions(document, wanted))
    if len(found) == 1:
        buffer.apply_completion(found[0])
        if takes_more(buffer.text):
            buffer.insert_text(" ")
    elif common := get_common_complete_suffix(document, found):
        buffer.insert_text(common)
    elif found and buffer.complete_state is not None:
        buffer.complete_next()
    elif found:
        buffer.start_completion(select_first=True)
