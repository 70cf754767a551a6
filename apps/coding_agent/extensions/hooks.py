"""What extensions are told of a run: in order, beside it, and without any power over it.

The events go through a queue of the run's own, so a slow hook delays neither the model nor what is
shown. A hook that fails is logged, and the others are told all the same.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import anyio

from coding_agent.extensions.api import HookName
from coding_agent.extensions.checking import Hook
from coding_agent.extensions.threads import in_own_thread
from lemon_agent import AgentContext, AgentEvent, LoopConfig, MessageEnd
from lemon_agent.events import (
    AgentEnd,
    AgentStart,
    MessageStart,
    RunCanceled,
    RunFailed,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnStart,
)
from lemon_agent.types import WatchLoop
from lemon_core.clock import Clock, within
from lemon_core.logs import get_logger

log = get_logger(__name__)

TIMEOUT_MS: Final = 5_000
LAST_WORDS_S: Final = 2.0
MAX_WAITING: Final = 10_000

Hooks = Mapping[HookName, Sequence[tuple[str, Hook]]]


class HookFeed:
    """The hooks of one run; `serve` is a task of the run and ends after `close`."""

    def __init__(self, hooks: Hooks, clock: Clock) -> None:
        self._hooks, self._clock = hooks, clock
        self._waiting: deque[tuple[HookName, tuple[object, ...]]] = deque()
        self._changed = anyio.Event()
        self._is_closed = False
        self._scope = anyio.CancelScope()

    def watching(self, other: WatchLoop | None) -> WatchLoop:
        """The loop's `watch` that notes everything here and tells `other` too."""

        def begin(context: AgentContext, config: LoopConfig) -> Callable[[AgentEvent], None]:
            seen = None if other is None else other(context, config)

            def note(event: AgentEvent) -> None:
                self.note(event)
                if seen is not None:
                    seen(event)

            return note

        return begin

    def note(self, event: AgentEvent) -> None:
        """Take an event that somebody wants to hear of."""
        call = call_of(event)
        if call is None or call[0] not in self._hooks:
            return
        if len(self._waiting) >= MAX_WAITING:
            log.warning("extensions.hook_skipped", hook=call[0])
            return
        self._waiting.append(call)
        self._changed.set()

    def close(self) -> None:
        """Nothing more comes; what still waits has two seconds."""
        self._is_closed = True
        self._scope.deadline = anyio.current_time() + LAST_WORDS_S
        self._changed.set()

    async def serve(self) -> None:
        """Call hooks until everything is told, or the time after `close` is over."""
        with self._scope:
            while self._waiting or not self._is_closed:
                self._changed = anyio.Event()
                await self._tell()
                if not self._has_closed():
                    await self._changed.wait()
        if self._waiting:
            log.warning("extensions.hooks_cut_off", waiting=len(self._waiting))

    def _has_closed(self) -> bool:
        return self._is_closed

    async def _tell(self) -> None:
        while self._waiting:
            name, args = self._waiting.popleft()
            for extension, hook in self._hooks[name]:
                await self._call(extension, name, hook, args)

    async def _call(
        self, extension: str, name: HookName, hook: Hook, args: tuple[object, ...]
    ) -> None:
        async def call() -> None:
            if inspect.iscoroutinefunction(hook):
                await hook(*args)
                return
            # A plain function that takes its time must not hold the loop.
            given = await in_own_thread(partial(hook, *args))
            if inspect.isawaitable(given):
                await given

        try:
            await within(self._clock, TIMEOUT_MS, call)
        except TimeoutError:
            log.warning("extensions.hook_late", extension=extension, hook=name)
        except Exception:  # foreign code may raise anything; the others are told all the same
            log.exception("extensions.hook_failed", extension=extension, hook=name)


def call_of(event: AgentEvent) -> tuple[HookName, tuple[object, ...]] | None:
    """The hook that an event is for, and what it is told."""
    match event:
        case AgentStart():
            return "on_agent_start", ()
        case AgentEnd(messages=messages) | RunFailed(messages=messages):
            return "on_agent_end", (tuple(messages),)
        case RunCanceled(messages=messages):
            return "on_agent_end", (tuple(messages),)
        case TurnStart():
            return "on_turn_start", ()
        case TurnEnd(message=message, tool_results=results):
            return "on_turn_end", (message, tuple(results))
        case MessageStart(message=message):
            return "on_message_start", (message,)
        case MessageEnd(message=message):
            return "on_message_end", (message,)
        case ToolExecutionStart(id=call_id, name=name, args=args):
            return "on_tool_execution_start", (call_id, name, dict(args))
        case ToolExecutionEnd(id=call_id, name=name, result=result, is_error=is_error):
            return "on_tool_execution_end", (call_id, name, result, is_error)
        case _:
            return None
