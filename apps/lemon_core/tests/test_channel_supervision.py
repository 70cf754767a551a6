"""Telling a chat how something ended (specification lemon_core 5.4)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lemon_core.capabilities import Capabilities
from lemon_core.channel_supervision import (
    CHANNEL_SUPERVISION,
    AdmissionResult,
    BindResult,
    ChannelSupervision,
    SupervisionTarget,
    TerminalFact,
)

pytestmark = pytest.mark.anyio

TARGET = SupervisionTarget(
    supervision_id="cron:j", source="cron", session_key="s", agent_id="a", created_at_ms=1
)
FACT = TerminalFact(
    fact_id="cron:j:terminal", supervision_id="cron:j", outcome="timeout", occurred_at_ms=2
)


class Channels:
    """Remembers what it was told, or breaks."""

    def __init__(self, *, broken: bool = False) -> None:
        self.told: list[object] = []
        self._broken = broken

    def _take(self, what: object) -> None:
        if self._broken:
            raise OSError("disk full")
        self.told.append(what)

    async def bind(self, target: SupervisionTarget) -> BindResult:
        self._take(target)
        return BindResult("bound")

    async def submit_terminal(self, fact: TerminalFact) -> AdmissionResult:
        self._take(fact)
        return AdmissionResult("rejected", "already_terminal")

    async def unbind(self, supervision_id: str) -> None:
        self._take(supervision_id)


def supervision(channels: Channels | None) -> ChannelSupervision:
    capabilities = Capabilities()
    if channels is not None:
        capabilities.register(CHANNEL_SUPERVISION, channels)
    return ChannelSupervision(capabilities)


async def test_a_provider_answers() -> None:
    channels = Channels()
    port = supervision(channels)
    assert await port.bind(TARGET) == BindResult("bound")
    assert await port.submit_terminal(FACT) == AdmissionResult("rejected", "already_terminal")
    assert await port.unbind("cron:j") == "ok"
    assert channels.told == [TARGET, FACT, "cron:j"]


@pytest.mark.behaviour("lemon_core.13")
async def test_unregistered_is_unavailable_for_every_call() -> None:
    port = supervision(None)
    assert (await port.bind(TARGET)).status == "unavailable"
    assert (await port.submit_terminal(FACT)).status == "unavailable"
    assert await port.unbind("cron:j") == "unavailable"


async def test_a_provider_that_breaks_can_be_asked_again() -> None:
    port = supervision(Channels(broken=True))
    assert (await port.bind(TARGET)).status == "unavailable"
    assert (await port.submit_terminal(FACT)).status == "unavailable"
    assert await port.unbind("cron:j") == "unavailable"


def test_targets_and_facts_survive_json_and_hold_nothing_else() -> None:
    for contract in (TARGET, FACT):
        assert type(contract).model_validate_json(contract.model_dump_json()) == contract
        with pytest.raises(ValidationError):
            type(contract).model_validate({**contract.model_dump(), "chat": 1})
    with pytest.raises(ValidationError):
        SupervisionTarget.model_validate({**TARGET.model_dump(), "source": "person"})
    with pytest.raises(ValidationError):
        TerminalFact.model_validate({**FACT.model_dump(), "outcome": "fine"})
