"""Prompt sections from other apps, asked once per user turn within a small, bounded time.

Text that can change between two turns belongs into the user message: in the system prompt it would
make the provider read, and bill, the whole prefix anew. One registry per runtime:
`runtime.service(Contributors.of)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

import anyio

from lemon_agent.tool_registry import SessionScope
from lemon_core.clock import Clock, SystemClock, within
from lemon_core.logs import get_logger

if TYPE_CHECKING:
    from lemon_core.runtime import Runtime

log = get_logger(__name__)

DEFAULT_TIMEOUT_MS: Final = 250
MAX_TIMEOUT_MS: Final = 3_000
BUDGETS_MS: Final = 50
MAX_SECTIONS: Final = 8
MAX_BYTES: Final = 16_384

Placement = Literal["system", "user_message"]
_PLACEMENTS: Final = ("system", "user_message")


@dataclass(frozen=True, slots=True)
class Section:
    """One titled piece of a prompt; `contributor` is filled in by `collect`."""

    title: str
    body: str
    placement: Placement = "system"
    contributor: str = ""


@dataclass(frozen=True, slots=True)
class ContributionRequest:
    """What a contributor may know about the turn; `query` is the user's text."""

    cwd: str | None = None
    session_key: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    session_scope: SessionScope = "main"
    query: str | None = None


class Contributor(Protocol):
    """May also have `timeout_ms(request) -> int`, the time that it asks for."""

    async def contribute(
        self, request: ContributionRequest
    ) -> Section | Sequence[Section] | None: ...


class Contributors:
    """Contributors by name, in the order of registering."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._contributors: dict[str, Contributor] = {}

    @classmethod
    def of(cls, runtime: Runtime) -> Self:
        """The contributors of a runtime, for `runtime.service`."""
        return cls(runtime.clock)

    def register(self, name: str, contributor: Contributor) -> None:
        """Ask this one too; registering a name again replaces it in its place."""
        self._contributors[name] = contributor

    def unregister(self, name: str) -> None:
        """Ask it no longer."""
        self._contributors.pop(name, None)

    async def collect(
        self, request: ContributionRequest, timeout_ms: int = MAX_TIMEOUT_MS
    ) -> list[Section]:
        """Everybody's sections, in the order of registering; never raises for one of them.

        All are asked at once: the whole takes at most 50 ms for their budgets and then as long as
        the largest of them. Whoever raises or is late is left out for this turn.
        """
        asked = tuple(self._contributors.items())
        if not asked:
            return []
        budgets = await self._budgets(asked, request, timeout_ms)
        answers: dict[str, list[Section]] = {}

        async def ask(name: str, contributor: Contributor) -> None:
            answers[name] = await self._ask(name, contributor, request, budgets[name])

        async with anyio.create_task_group() as tasks:
            for name, contributor in asked:
                tasks.start_soon(ask, name, contributor)
        for name, _ in asked:
            if name not in answers:  # it cancelled itself, which ends its own task alone
                log.warning("contributors.cancelled", contributor=name)
        return [section for name, _ in asked for section in answers.get(name, ())]

    async def _budgets(
        self,
        asked: Sequence[tuple[str, Contributor]],
        request: ContributionRequest,
        ceiling_ms: int,
    ) -> dict[str, int]:
        """The time of each; whoever has not said it within 50 ms in all gets the default."""
        wanted = dict.fromkeys((name for name, _ in asked), DEFAULT_TIMEOUT_MS)

        def say(name: str, timeout_ms: Callable[[ContributionRequest], int]) -> None:
            wanted[name] = int(timeout_ms(request))

        async def resolve() -> None:
            async with anyio.create_task_group() as tasks:
                for name, contributor in asked:
                    if callable(timeout_ms := getattr(contributor, "timeout_ms", None)):
                        tasks.start_soon(in_thread, name, timeout_ms)

        async def in_thread(name: str, timeout_ms: Callable[[ContributionRequest], int]) -> None:
            try:
                # A plain function that hangs must not hold the loop.
                await anyio.to_thread.run_sync(say, name, timeout_ms, abandon_on_cancel=True)
            except Exception:
                log.warning("contributors.no_budget", contributor=name, exc_info=True)

        try:
            await within(self._clock, BUDGETS_MS, resolve)
        except TimeoutError:
            log.debug("contributors.budgets_late")
        return {
            name: max(1, min(ms, ceiling_ms, MAX_TIMEOUT_MS)) for name, ms in dict(wanted).items()
        }

    async def _ask(
        self,
        name: str,
        contributor: Contributor,
        request: ContributionRequest,
        budget_ms: int,
    ) -> list[Section]:
        try:
            found = await within(self._clock, budget_ms, lambda: contributor.contribute(request))
        except TimeoutError:
            log.debug("contributors.late", contributor=name, budget_ms=budget_ms)
            return []
        except Exception:  # one app's fault costs the others nothing
            log.warning("contributors.failed", contributor=name, exc_info=True)
            return []
        return _fitting(name, found)


def split(sections: Iterable[Section]) -> tuple[list[Section], list[Section]]:
    """Those for the system prompt, and those for the user message."""
    system: list[Section] = []
    user_message: list[Section] = []
    for section in sections:
        (system if section.placement == "system" else user_message).append(section)
    return system, user_message


def _fitting(name: str, found: Any) -> list[Section]:
    """The well-shaped sections, as many of the first as fit, whole ones only."""
    if found is None:
        return []
    sections = found if isinstance(found, Sequence) and not isinstance(found, str) else [found]
    kept: list[Section] = []
    room = MAX_BYTES
    for section in sections:
        if not _is_sound(section):
            log.warning("contributors.bad_section", contributor=name)
            continue
        room -= len(section.title.encode()) + len(section.body.encode())
        if room < 0 or len(kept) == MAX_SECTIONS:
            log.warning("contributors.too_much", contributor=name)
            break
        kept.append(replace(section, contributor=name))
    return kept


def _is_sound(section: Any) -> bool:
    if not isinstance(section, Section):
        return False
    given: Any = section  # another app made it, so its fields may hold anything
    texts = (given.title, given.body)
    # An unknown placement is not guessed at: it may not become part of the system prompt.
    return given.placement in _PLACEMENTS and all(isinstance(t, str) and t.strip() for t in texts)
