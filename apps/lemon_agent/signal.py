"""The abort signal of a run, with its independent redirect bit.

Two bits and the callbacks that watch them. `abort` is final and reaches everything the run awaits;
a redirect concerns the model call in flight only, never makes `aborted` true and never touches a
tool. Callbacks run inside `abort()` and `request_redirect()`, so that whoever is stopped is woken
in the same step, without a task that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from lemon_agent.errors import Aborted


@dataclass(frozen=True, slots=True, eq=False)
class _Watcher:
    on_abort: Callable[[], None]
    on_redirect: Callable[[], None] | None


class AbortSignal:
    """One per run; tools receive it in their `ToolCallContext`."""

    __slots__ = ("_aborted", "_event", "_redirect", "_watchers")

    def __init__(self) -> None:
        self._aborted = False
        self._redirect = False
        self._event: anyio.Event | None = None
        self._watchers: list[_Watcher] = []

    # -- abort -------------------------------------------------------------------------------

    @property
    def aborted(self) -> bool:
        """Whether the run has been told to stop."""
        return self._aborted

    def abort(self) -> None:
        """Stop the run; may be called any number of times."""
        if self._aborted:
            return
        self._aborted = True
        if self._event is not None:
            self._event.set()
        for watcher in tuple(self._watchers):
            watcher.on_abort()

    def check(self) -> None:
        """Raise `Aborted` when the run has been told to stop."""
        if self._aborted:
            raise Aborted

    async def wait_aborted(self) -> None:
        """Return once the run has been told to stop."""
        if self._aborted:
            return
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    # -- redirect ----------------------------------------------------------------------------

    @property
    def redirect_requested(self) -> bool:
        """Whether the model call in flight, or the next one, is to be given up."""
        return self._redirect

    def request_redirect(self) -> None:
        """Give up the model call in flight; the loop asks again with what was queued."""
        if self._redirect:
            return
        self._redirect = True
        for watcher in tuple(self._watchers):
            if watcher.on_redirect is not None:
                watcher.on_redirect()

    def clear_redirect(self) -> None:
        """Forget the request; the loop calls this right before it drains the steering queue."""
        self._redirect = False

    # -- watching ----------------------------------------------------------------------------

    @contextmanager
    def watching(
        self, on_abort: Callable[[], None], on_redirect: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Call back while the block runs; at once for what has been requested already."""
        watcher = _Watcher(on_abort, on_redirect)
        self._watchers.append(watcher)
        try:
            if self._aborted:
                on_abort()
            elif self._redirect and on_redirect is not None:
                on_redirect()
            yield
        finally:
            self._watchers.remove(watcher)
