"""Event fan-out, gateway info and the controls of automation (specification lemon_core 5.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lemon_core.automation_ports import (
    CRON_MANAGER,
    GOAL_AUTOMATION,
    KANBAN_AUTOMATION,
    AutomationRefused,
    cron_manager,
    goal_automation,
    kanban_automation,
)
from lemon_core.capabilities import Capabilities, doctor_runtime
from lemon_core.engine_info import ENGINE_INFO, EngineInfoBridge, Transport
from lemon_core.event_bridge import EVENT_BRIDGE, EventBridge

SMS = Transport("sms", enabled=False)
WEBHOOK = Transport("webhook", enabled=True, detail={"port": 4046})


class Follower:
    def __init__(self, *, broken: bool = False) -> None:
        self.told: list[str] = []
        self._broken = broken

    def subscribe_run(self, run_id: str) -> None:
        if self._broken:
            raise RuntimeError("closed")
        self.told.append(f"+{run_id}")

    def unsubscribe_run(self, run_id: str) -> None:
        if self._broken:
            raise RuntimeError("closed")
        self.told.append(f"-{run_id}")


class Gateway:
    def __init__(self, *, broken: bool = False) -> None:
        self._broken = broken

    def list_transports(self) -> Sequence[Transport]:
        if self._broken:
            raise RuntimeError("starting")
        return (SMS, WEBHOOK)

    def gateway_config(self) -> Mapping[str, object]:
        if self._broken:
            raise RuntimeError("starting")
        return {"max_concurrent_runs": 2}


def registered(key: str, impl: object) -> Capabilities:
    capabilities = Capabilities()
    capabilities.register(key, impl)
    return capabilities


def test_a_follower_is_told_and_neither_its_absence_nor_its_failure_is_felt() -> None:
    follower = Follower()
    for capabilities in (
        registered(EVENT_BRIDGE, follower),
        registered(EVENT_BRIDGE, Follower(broken=True)),
        Capabilities(),
    ):
        bridge = EventBridge(capabilities)
        bridge.subscribe_run("a")
        bridge.unsubscribe_run("a")
    assert follower.told == ["+a", "-a"]


def test_the_gateway_tells_its_transports_and_configuration() -> None:
    info = EngineInfoBridge(registered(ENGINE_INFO, Gateway()))
    assert info.list_transports() == (SMS, WEBHOOK)
    assert info.enabled_transports() == [WEBHOOK]
    assert info.get_transport("sms") == SMS
    assert info.get_transport("pigeon") is None
    assert info.gateway_config() == {"max_concurrent_runs": 2}


def test_without_an_answer_of_the_gateway_there_is_none() -> None:
    for capabilities in (Capabilities(), registered(ENGINE_INFO, Gateway(broken=True))):
        info = EngineInfoBridge(capabilities)
        assert info.list_transports() is None
        assert info.enabled_transports() is None
        assert info.get_transport("sms") is None
        assert info.gateway_config() is None


def test_automation_is_there_or_not() -> None:
    for key, get in (
        (CRON_MANAGER, cron_manager),
        (GOAL_AUTOMATION, goal_automation),
        (KANBAN_AUTOMATION, kanban_automation),
    ):
        provider = object()
        assert get(Capabilities()) is None
        assert get(registered(key, provider)) is provider


def test_a_refusal_carries_its_word() -> None:
    refusal = AutomationRefused("immutable_fields", "id, created_at_ms")
    assert (refusal.reason, str(refusal)) == (
        "immutable_fields",
        "immutable_fields: id, created_at_ms",
    )
    assert doctor_runtime("xmtp") == "doctor_runtime:xmtp"
