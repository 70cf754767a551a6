"""Telling a chat how something that nobody typed has ended.

Automation binds what it supervises (a cron run, a goal, a task) to a route and hands over one
terminal fact for it; the channels app keeps the fact durably and delivers it. No text layout and no
platform's form crosses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from lemon_core.capabilities import Capabilities
from lemon_core.logs import get_logger
from lemon_core.messages import DeliveryRoute

log = get_logger("lemon_core.channel_supervision")

CHANNEL_SUPERVISION: Final = "channel_supervision"
SUMMARY_MAX_CHARS: Final = 4_000
"""The longest summary of a fact; the provider rejects a longer one."""

SupervisionSource = Literal["cron", "goal", "kanban", "task", "heartbeat"]
BindStatus = Literal[
    "bound", "conflict", "not_a_channel", "unknown_channel", "invalid", "unavailable"
]
AdmissionStatus = Literal["accepted", "duplicate", "unknown_target", "rejected", "unavailable"]
FactOutcome = Literal["success", "partial", "failure", "aborted", "unknown", "timeout"]


class SupervisionTarget(BaseModel):
    """What is supervised and where its end is told; without a route the session key says where."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    supervision_id: str = Field(min_length=1)
    source: SupervisionSource
    session_key: str = Field(min_length=1)
    route: DeliveryRoute | None = None
    run_id: str | None = None
    agent_id: str = Field(min_length=1)
    created_at_ms: int
    meta: dict[str, object] = Field(default_factory=dict)


class TerminalFact(BaseModel):
    """How the supervised thing ended. `detail.text` is the full text, `detail.title` its heading.

    A fact is known by `fact_id`, and a supervision id has one: handing it over again is harmless.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    fact_id: str = Field(min_length=1)
    supervision_id: str = Field(min_length=1)
    run_id: str | None = None
    outcome: FactOutcome
    summary: str = ""
    detail: dict[str, object] = Field(default_factory=dict)
    occurred_at_ms: int


@dataclass(frozen=True, slots=True)
class BindResult:
    """`bound` also when the same target was bound before; other content is a `conflict`."""

    status: BindStatus
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """`accepted` means durably kept; after `unavailable` the same fact is handed over again."""

    status: AdmissionStatus
    reason: str | None = None


class SupervisionProvider(Protocol):
    """What the channels app registers under `CHANNEL_SUPERVISION`."""

    async def bind(self, target: SupervisionTarget) -> BindResult:
        """Remember where the end of `target` is told."""

    async def submit_terminal(self, fact: TerminalFact) -> AdmissionResult:
        """Keep `fact` and deliver it."""

    async def unbind(self, supervision_id: str) -> None:
        """Forget a target; a fact that was accepted is delivered all the same."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChannelSupervision:
    """The channels as automation sees them: each call answers.

    With no provider, and with one that breaks, the answer is `unavailable`: all calls are
    idempotent, so that they can be made again.
    """

    capabilities: Capabilities

    async def bind(self, target: SupervisionTarget) -> BindResult:
        """Bind `target`; the same id with other content is a `conflict`."""
        return await self._ask(lambda channels: channels.bind(target), BindResult("unavailable"))

    async def submit_terminal(self, fact: TerminalFact) -> AdmissionResult:
        """Hand `fact` over; only `accepted` and `duplicate` mean that it is kept."""
        return await self._ask(
            lambda channels: channels.submit_terminal(fact), AdmissionResult("unavailable")
        )

    async def unbind(self, supervision_id: str) -> Literal["ok", "unavailable"]:
        """Forget a target."""

        async def forget(channels: SupervisionProvider) -> Literal["ok", "unavailable"]:
            await channels.unbind(supervision_id)
            return "ok"

        return await self._ask(forget, "unavailable")

    async def _ask(self, call: Callable[[SupervisionProvider], Awaitable[T]], unavailable: T) -> T:
        # The registry is untyped; only a provider registers under this key.
        provider = cast("SupervisionProvider | None", self.capabilities.get(CHANNEL_SUPERVISION))
        if provider is None:
            return unavailable
        try:
            return await call(provider)
        except Exception:  # a channel that breaks must not take automation along
            log.exception("channel_supervision.failed")
            return unavailable
