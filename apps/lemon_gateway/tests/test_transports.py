"""Transports and commands: what may be contributed, what is served, what a person is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from lemon_core.bindings import ChatScope
from lemon_core.boot import BootError, boot
from lemon_core.bridges import ENGINE_RUNTIME
from lemon_core.capabilities import Capabilities
from lemon_core.config.gateway import GatewaySection
from lemon_core.engine_info import EngineInfoBridge
from lemon_core.engine_info import Transport as TransportInfo
from lemon_core.profiles import Profile
from lemon_core.runtime import Runtime
from lemon_core.supervisor import Supervisor
from lemon_core.testing import FakeClock, scrubbed_environ, temp_home
from lemon_gateway.errors import InvalidName, UnknownTransport
from lemon_gateway.tests.fakes import ScriptedExecutor, command, running_gateway, settle
from lemon_gateway.transports import (
    COMMANDS,
    INGRESS,
    TRANSPORTS,
    Answer,
    CancelCommand,
    CommandCall,
    CommandError,
    CommandRegistry,
    Ingress,
    Reply,
    TransportRegistry,
    TransportSupervisor,
)

SCOPE = ChatScope(transport="webhook", chat_id=1)


@dataclass(eq=False)
class Door:
    """A transport that tells when it serves, and fails as often as it is told to."""

    id: str
    failures: int = 0
    calls: int = 0
    serving: anyio.Event = field(default_factory=anyio.Event)

    async def serve(self) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise OSError("the door is stuck")
        self.serving.set()
        await anyio.sleep_forever()


@dataclass
class Word:
    """A command that repeats its arguments."""

    name: str
    description: str = "say it again"

    async def handle(self, scope: ChatScope, args: str, context: CommandCall) -> Answer:
        return Reply(args)


def section(**values: object) -> GatewaySection:
    return GatewaySection.model_validate(values)


# --- registries ---


@pytest.mark.behaviour("lemon_gateway.37")
@pytest.mark.parametrize("name", ["", "Door", "1door", "do or", "default", "all", "tür"])
def test_a_transport_id_has_a_form_and_some_are_taken(name: str) -> None:
    """Specification lemon_gateway 6."""
    with pytest.raises(InvalidName, match="transport"):
        TransportRegistry([Door(name)], section())


@pytest.mark.behaviour("lemon_gateway.37")
@pytest.mark.parametrize("name", ["", "Say", "1x", "a-b", "help", "start", "stop", "cancel"])
def test_a_command_name_has_a_form_and_some_are_taken(name: str) -> None:
    """Specification lemon_gateway 10."""

    async def nothing(_: str, __: str | int) -> bool:
        return False

    with pytest.raises(InvalidName, match="command"):
        CommandRegistry([CancelCommand(nothing), Word(name)])


def test_what_is_registered_can_be_found() -> None:
    """Specification lemon_gateway 6: `list, get, get_or_raise, enabled`."""
    door, other = Door("door"), Door("my-door_2")
    registry = TransportRegistry([door, Door("discord"), Door("email"), other], section())
    assert registry.list() == registry.enabled() == (door, other)
    assert registry.get("door") is registry.get_or_raise("door") is door
    assert registry.get("discord") is None
    with pytest.raises(UnknownTransport, match="known: door, my-door_2"):
        registry.get_or_raise("email")
    with pytest.raises(InvalidName, match="more than once"):
        TransportRegistry([door, Door("door")], section())
    commands = CommandRegistry([word := Word("say")])
    assert commands.list() == (word,)
    assert (commands.get("say"), commands.get("x")) == (word, None)


def test_some_transports_have_a_switch_and_no_use_is_told() -> None:
    """Specification lemon_gateway 6: telegram, xmtp and webhook by their flag."""
    doors = [Door(name) for name in ("telegram", "xmtp", "webhook", "other")]
    registry = TransportRegistry(doors, section())
    assert [door.id for door in registry.enabled()] == ["other"]
    registry = TransportRegistry(doors, section(enable_webhook=True))
    assert [door.id for door in registry.enabled()] == ["webhook", "other"]
    assert registry.problems() == ()
    assert TransportRegistry([], section()).problems() == ()
    lost = TransportRegistry([], section(enable_webhook=True, gateway_ingress_enabled=True))
    assert [text.partition(":")[0] for text in lost.problems()] == [
        "gateway.enable_webhook",
        "gateway.gateway_ingress_enabled",
    ]


async def test_transports_fail_and_restart_alone() -> None:
    """Specification lemon_gateway 6: the supervisor restarts each alone."""
    clock = FakeClock()
    stuck, slow, good = Door("stuck", failures=99), Door("slow", failures=2), Door("good")
    supervisor = TransportSupervisor(Supervisor(clock))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for door in (stuck, slow, good):
                tasks.start_soon(supervisor.run, door)
            await good.serving.wait()
            for _ in range(12):
                await settle()
                await clock.advance(3_000)
            await slow.serving.wait()
            assert stuck.calls == 6, "given up, and nobody else went with it"
            assert (slow.calls, good.calls) == (3, 1)
            tasks.cancel_scope.cancel()


# --- the command cancel ---


async def test_cancel_ends_the_run_of_the_message_it_replies_to() -> None:
    """Specification lemon_gateway 10: else a hint, or that none was found."""
    with anyio.fail_after(5):
        async with running_gateway() as gateway:
            session = "agent:default:main"
            await gateway.runtime.submit_execution(command("run_1", meta={"progress_msg_id": 7}))
            await gateway.executor.run("run_1")
            await settle()
            cancel = CancelCommand(gateway.runtime.cancel_by_progress_msg)
            hint = await cancel.handle(SCOPE, "", CommandCall(session))
            assert isinstance(hint, Reply)
            unknown = await cancel.handle(SCOPE, "", CommandCall(session, 8))
            assert isinstance(unknown, CommandError)
            assert await cancel.handle(SCOPE, "", CommandCall(session, 7)) is None
            assert (await gateway.end("run_1")).error == "user_requested"
            assert isinstance(await cancel.handle(SCOPE, "", CommandCall(session, 7)), CommandError)


# --- in a runtime ---

CONTRIBUTED: dict[str, tuple[object, ...]] = {}


class Executor(ScriptedExecutor):
    """What the profile names."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()


@asynccontextmanager
async def contributing(runtime: Runtime) -> AsyncIterator[None]:
    """A component that contributes what the test put into CONTRIBUTED."""
    for key, items in CONTRIBUTED.items():
        for item in items:
            runtime.capabilities.contribute(key, item)
    yield


@asynccontextmanager
async def booted(
    gateway: Mapping[str, object],
    contributed: Mapping[str, tuple[object, ...]],
    *,
    serve: bool = True,
) -> AsyncIterator[Runtime]:
    """A runtime whose gateway finds `contributed`."""
    CONTRIBUTED.clear()
    CONTRIBUTED.update(contributed)
    profile = Profile(
        "test",
        components=(f"{__name__}:contributing", "lemon_gateway.app:component"),
        executor=f"{__name__}:Executor",
    )
    values = {"health_port": 0, "rpc": {"enabled": False}, **gateway}
    with temp_home() as paths, anyio.fail_after(10):
        async with boot(
            profile,
            cwd=paths.home,
            environ=scrubbed_environ(paths.home),
            paths=paths,
            serve=serve,
            overrides={"gateway": values},
        ) as runtime:
            yield runtime


@pytest.mark.behaviour("lemon_gateway.37")
async def test_ingress_is_absent_by_default_and_present_when_enabled() -> None:
    """Specification lemon_gateway 6, 13.37."""
    started: tuple[tuple[dict[str, object], bool], ...] = (
        ({}, True),
        ({"gateway_ingress_enabled": True}, False),
    )
    for gateway, serve in started:
        door = Door("door")
        async with booted(gateway, {TRANSPORTS: (door,)}, serve=serve) as runtime:
            await settle()
            assert door.calls == 0
            assert runtime.capabilities.get(INGRESS) is None
    door, word = Door("door"), Word("say")
    contributed: dict[str, tuple[object, ...]] = {TRANSPORTS: (door,), COMMANDS: (word,)}
    binding = {"transport": "door", "chat_id": 5, "agent_id": "coder", "project": "p"}
    on: dict[str, object] = {
        "gateway_ingress_enabled": True,
        "bindings": [binding],
        "projects": {"p": {"root": "/"}},
    }
    async with booted(on, contributed) as runtime:
        await door.serving.wait()
        ingress = runtime.capabilities.get(INGRESS)
        assert isinstance(ingress, Ingress)
        assert [known.name for known in ingress.commands.list()] == ["cancel", "say"]
        scope = ChatScope(transport="door", chat_id=5)
        assert ingress.bindings.resolve_agent_id(scope) == "coder"
        assert str(await ingress.bindings.resolve_cwd(scope)) == "/"
        assert runtime.warnings == ()
    assert runtime.capabilities.get(INGRESS) is None


@pytest.mark.behaviour("lemon_gateway.37")
@pytest.mark.parametrize("contributed", [{TRANSPORTS: (Door("all"),)}, {COMMANDS: (Word("help"),)}])
async def test_a_name_that_is_taken_stops_the_start(
    contributed: dict[str, tuple[object, ...]],
) -> None:
    """Specification lemon_gateway 13.37: also of what would not be served."""
    with pytest.raises(BootError, match=r"lemon_gateway did not start.*is reserved"):
        async with booted({}, contributed):
            pass


async def test_what_has_no_effect_is_told_to_whoever_starts_the_server() -> None:
    """Specification lemon_gateway 6, 10: nothing to serve, a project without a directory."""
    gateway: dict[str, object] = {
        "gateway_ingress_enabled": True,
        "projects": {"gone": {"root": "/nowhere/at/all"}},
    }
    async with booted(gateway, {}) as runtime:
        assert runtime.warnings == (
            "gateway.gateway_ingress_enabled: no transport is there, nothing is taken",
            "gateway.projects.gone.root: /nowhere/at/all is no directory",
        )


@pytest.mark.parametrize("on", [True, False])
async def test_the_control_plane_sees_transports_and_configuration(on: bool) -> None:
    """Specification lemon_gateway 12: the EngineInfoBridge, without secrets."""
    row = {"id": "desk", "secret": "DESK_TOKEN"}
    gateway: dict[str, object] = {
        "gateway_ingress_enabled": on,
        "rpc": {"enabled": False, "tokens": [row]},
    }
    async with booted(gateway, {TRANSPORTS: (Door("door"), Door("xmtp"))}) as runtime:
        bridge = EngineInfoBridge(runtime.capabilities)
        assert runtime.capabilities.get(ENGINE_RUNTIME) is not None
        assert bridge.list_transports() == (TransportInfo("door", on), TransportInfo("xmtp", False))
        assert [t.id for t in bridge.enabled_transports() or ()] == (["door"] if on else [])
        shown = bridge.gateway_config()
        assert shown is not None
        assert shown["max_concurrent_runs"] == 2
        assert "DESK_TOKEN" not in str(shown)
    assert EngineInfoBridge(Capabilities()).list_transports() is None
    assert EngineInfoBridge(runtime.capabilities).gateway_config() is None
