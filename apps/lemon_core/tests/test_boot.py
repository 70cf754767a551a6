"""From a profile to a runtime and back (specification lemon_core 13; DESIGN rulings 22, 30)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from lemon_core.boot import BootError, boot
from lemon_core.capabilities import RUN_HISTORY
from lemon_core.config.load import ConfigError
from lemon_core.events import RunFailed
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.runtime import Runtime
from lemon_core.runtime_status import RuntimeStatus
from lemon_core.state_lock import RuntimeBusy, read_holder
from lemon_core.store import StoreUnavailable
from lemon_core.testing import scrubbed_environ, temp_home
from lemon_core.tests.fake_app.app import Journal
from lemon_core.tests.processes import python, read_line

pytestmark = pytest.mark.anyio

APP = "lemon_core.tests.fake_app.app"


@pytest.fixture
def paths() -> Iterator[PathSettings]:
    with temp_home() as home:
        yield home


def booting(
    paths: PathSettings, *components: str, serve: bool = False, drain_budget_ms: int = 5_000
) -> AbstractAsyncContextManager[Runtime]:
    """A boot of the fake app's `components`."""
    profile = Profile("test", components=tuple(f"{APP}:{name}" for name in components))
    return boot(
        profile,
        cwd=paths.home,
        # A one-shot boot is silent otherwise.
        environ=scrubbed_environ(paths.home, {"LEMON_LOG_LEVEL": "warning"}),
        paths=paths,
        serve=serve,
        drain_budget_ms=drain_budget_ms,
    )


@pytest.mark.behaviour("lemon_core.38", "lemon_core.49")
async def test_up_in_order_and_down_by_refuse_end_relay_and_reverse(paths: PathSettings) -> None:
    with anyio.fail_after(5):
        async with booting(paths, "first", "second") as runtime:
            journal = runtime.service(Journal)
            assert journal.lines == ["first up", "second up"]
            assert runtime.service(Journal) is journal
    assert journal.lines == [
        "first up",
        "second up",
        "first refuse",
        "first end",
        "first relay",
        "second down",
        "first down",
    ]


@pytest.mark.behaviour("lemon_core.38")
@pytest.mark.parametrize(("component", "error"), [("broken", OSError), ("missing", AttributeError)])
async def test_the_first_failure_stops_the_rest_and_unwinds_in_reverse(
    paths: PathSettings, component: str, error: type[Exception]
) -> None:
    with anyio.fail_after(5), pytest.raises(BootError) as caught:
        await up_and_down(booting(paths, "first", "second", component, "needs_store"))
    assert (caught.value.app, type(caught.value.cause)) == ("lemon_core", error)
    assert caught.value.__cause__ is caught.value.cause
    lines = (paths.home / "journal.txt").read_text().splitlines()
    assert [line for line in lines if "broken" not in line] == [
        "first up",
        "second up",
        "first refuse",
        "first end",
        "first relay",
        "second down",
        "first down",
    ]
    async with booting(paths) as runtime:  # the lock is free, the last component was never there
        assert await runtime.store.list("things") == []


async def up_and_down(runtime: AbstractAsyncContextManager[Runtime]) -> None:
    """Enter and leave."""
    async with runtime:
        pass


async def test_a_failure_inside_a_task_group_is_told_as_itself(paths: PathSettings) -> None:
    with anyio.fail_after(5), pytest.raises(BootError) as caught:
        async with booting(paths, "broken_inside"):
            pytest.fail("booted")
    assert str(caught.value) == "lemon_core did not start: OSError: test is taken"


async def test_an_error_of_the_block_comes_out_as_itself(paths: PathSettings) -> None:
    async def fail() -> None:
        async with booting(paths, "crashing", "first") as runtime:
            runtime.service(Journal).note("failing")
            raise KeyError("mine")

    with anyio.fail_after(5), pytest.raises(KeyError, match="mine"):
        await fail()
    lines = (paths.home / "journal.txt").read_text().splitlines()
    assert lines[-2:] == ["first relay", "first down"]


async def test_a_crashing_component_takes_the_runtime_down_in_order(paths: PathSettings) -> None:
    async def crash() -> None:
        async with booting(paths, "first", "crashing") as runtime:
            runtime.service(Journal).crash.set()
            await anyio.sleep_forever()

    with anyio.fail_after(5), pytest.raises(ValueError, match="crashed"):
        await crash()
    assert (paths.home / "journal.txt").read_text().splitlines() == [
        "first up",
        "first refuse",
        "first end",
        "first relay",
        "first down",
    ]


@pytest.mark.behaviour("lemon_core.49")
async def test_cancellation_drains_too(paths: PathSettings) -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks, booting(paths, "first") as runtime:
            tasks.cancel_scope.cancel()
            await anyio.sleep_forever()
    assert runtime.service(Journal).lines[-2:] == ["first relay", "first down"]


@pytest.mark.behaviour("lemon_core.49")
async def test_what_hangs_is_cancelled_when_the_budget_is_used_up(
    paths: PathSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with anyio.fail_after(5), caplog.at_level(logging.WARNING, logger="lemon"):
        async with booting(paths, "first", "hanging", drain_budget_ms=50) as runtime:
            pass
    assert runtime.service(Journal).lines[-2:] == ["hanging", "first down"]
    assert "boot.unwind_cut_short" in [record.message for record in caplog.records]


async def test_store_and_lock_outlive_the_components(paths: PathSettings) -> None:
    async with booting(paths, "needs_store") as runtime:
        states = [runtime.lock.holder.state]
    assert [*states, runtime.lock.holder.state] == ["running", "draining"]
    with pytest.raises(StoreUnavailable):
        await runtime.store.ping()
    assert read_holder(paths.runtime_lock) is None
    async with booting(paths) as again:
        assert await again.store.get("things", "last") == "words"


@pytest.mark.behaviour("lemon_core.38")
async def test_a_second_runtime_is_refused_before_it_opens_anything(paths: PathSettings) -> None:
    async with booting(paths) as runtime:
        with anyio.fail_after(5), pytest.raises(RuntimeBusy) as caught:
            async with booting(paths):
                pytest.fail("two runtimes")
        assert caught.value.holder == runtime.lock.holder
        await runtime.store.ping()


@pytest.mark.behaviour("lemon_core.102")
async def test_two_homes_cannot_share_one_database(paths: PathSettings) -> None:
    def over(home: PathSettings) -> AbstractAsyncContextManager[Runtime]:
        environ = scrubbed_environ(home.home, {"LEMON_STORE_PATH": str(paths.home / "shared.db")})
        return boot(Profile("test"), cwd=home.home, environ=environ, paths=home, serve=False)

    with temp_home() as other:
        async with over(paths):
            with anyio.fail_after(5), pytest.raises(RuntimeBusy, match=r"shared\.db\.lock"):
                await up_and_down(over(other))
        await up_and_down(over(other))


async def test_two_runtimes_with_their_own_homes_share_nothing(paths: PathSettings) -> None:
    with temp_home() as other:
        async with booting(paths, "first") as one, booting(other, "first") as two:
            assert one.service(Journal) is not two.service(Journal)
            assert (one.bus.id, one.store) != (two.bus.id, two.store)


@pytest.mark.behaviour("lemon_core.49")
async def test_a_one_shot_boot_opens_no_port_and_no_socket(paths: PathSettings) -> None:
    def sockets() -> set[str]:
        return {
            target
            for fd in Path("/proc/self/fd").iterdir()
            if (target := _target(fd)).startswith("socket:")
        }

    before = sockets()
    async with booting(paths, "first") as runtime:
        assert not runtime.serve
        assert (runtime.lock.holder.kind, runtime.lock.holder.sockets) == ("one_shot", ())
        assert sockets() == before
        assert [path.name for path in paths.run_dir.iterdir()] == ["runtime.lock"]


def _target(fd: Path) -> str:
    try:
        return os.readlink(fd)
    except FileNotFoundError:  # the one that listed the folder
        return ""


async def test_a_server_removes_its_sockets_and_says_what_it_is(paths: PathSettings) -> None:
    async with booting(paths, serve=True) as runtime:
        path = runtime.lock.claim_socket(paths.router_socket)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            holder = read_holder(paths.runtime_lock)
            assert holder is not None
            assert (holder.kind, holder.sockets) == ("server", (str(path),))
    assert not path.exists()


async def test_subscribers_are_told_when_the_runtime_is_gone(paths: PathSettings) -> None:
    async with booting(paths) as runtime:
        subscription = runtime.bus.subscribe("t")
        receiver = subscription.__enter__()
    with anyio.fail_after(5):
        assert await receiver.receive_batch() == []
    runtime.bus.publish_event("t", "run_failed", RunFailed(run_id="r", reason="late"))


async def test_hooks_of_finished_runs_fire_in_a_running_runtime(paths: PathSettings) -> None:
    told = anyio.Event()
    async with booting(paths) as runtime:
        runtime.capabilities.contribute("finalize_run_hooks", lambda _event: told.set())
        await runtime.runs.finalize("run_1", {"session_key": "agent:default:main"})
        with anyio.fail_after(5):
            await told.wait()


async def test_malformed_configuration_starts_nothing(paths: PathSettings) -> None:
    paths.state_dir.mkdir()
    paths.config_file.write_text("[gateway\n")
    with pytest.raises(ConfigError, match=str(paths.config_file)):
        async with booting(paths):
            pytest.fail("booted")
    assert not paths.run_dir.exists()
    assert not paths.store_dir.exists()


async def test_configuration_of_profile_caller_and_dotenv_counts(paths: PathSettings) -> None:
    paths.state_dir.mkdir()
    (paths.state_dir / ".env").write_text("SOME_API_KEY=from-dotenv\n")
    paths.config_file.write_text("surprise = 1\n")
    profile = Profile("test", config={"gateway": {"max_concurrent_runs": 7}})
    async with boot(
        profile,
        cwd=paths.home,
        environ=scrubbed_environ(paths.home),
        paths=paths,
        serve=False,
        overrides={"store": {"backend": "memory"}},
    ) as runtime:
        assert runtime.config.gateway.max_concurrent_runs == 7
        assert runtime.environ["SOME_API_KEY"] == "from-dotenv"
        assert any("surprise" in warning for warning in runtime.warnings)
        assert not paths.store_dir.exists()


def test_the_executor_is_loaded_when_asked_for() -> None:
    runtime = object.__new__(Runtime)
    runtime.profile = Profile("x", executor=f"{APP}:Journal")
    assert runtime.load_executor() is Journal
    runtime.profile = Profile("x")
    with pytest.raises(ValueError, match="names no executor"):
        runtime.load_executor()


async def test_a_runtime_tells_which_of_its_apps_are_up(paths: PathSettings) -> None:
    async with booting(paths, "first", "second") as runtime:
        assert runtime.status() == RuntimeStatus("ok", ("lemon_core",))
        assert runtime.status(["lemon_core", "lemon_web", "lemon_web"]) == RuntimeStatus(
            "degraded", ("lemon_core",), missing=("lemon_web",)
        )
        assert runtime.capabilities.get(RUN_HISTORY) is runtime.runs
    assert runtime.status() == RuntimeStatus("degraded", (), missing=("lemon_core",))


SERVER = """
import sys, anyio
from pathlib import Path
from lemon_core.boot import boot
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile

async def main():
    home = Path(sys.argv[1])
    async with boot(Profile("x"), cwd=home, environ={"HOME": str(home)}) as runtime:
        await runtime.runs.begin("run_1", b"d", session_key="s")
        print("up", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.behaviour("lemon_core.38", "lemon_core.45")
async def test_a_runtime_takes_over_after_sigkill_and_knows_what_was_lost(
    paths: PathSettings,
) -> None:
    with python(SERVER, str(paths.home)) as process:
        assert read_line(process) == "up"
        with pytest.raises(RuntimeBusy):
            async with booting(paths):
                pytest.fail("two runtimes")
        process.kill()
        process.wait(timeout=5)
    with anyio.fail_after(5):
        async with booting(paths) as runtime:
            record = await runtime.runs.get("run_1")
            assert record is not None
            assert (record.state, record.session_key) == ("lost", "s")
            assert not await runtime.runs.begin("run_1", b"d")


DRAINING = """
import sys, anyio
from contextlib import asynccontextmanager
from pathlib import Path
from lemon_core.boot import boot
from lemon_core.profiles import Profile

async def hang():
    print("draining", flush=True)
    await anyio.sleep_forever()

async def main():
    home = Path(sys.argv[1])
    async with boot(
        Profile("x"), cwd=home, environ={"HOME": str(home)}, drain_budget_ms=3_600_000
    ) as runtime:
        runtime.on_drain("end", hang)
        await runtime.store.put("things", "kept", 1)
        if sys.argv[2] == "write":
            for number in range(1_000_000):
                await runtime.store.put("things", "last", number)
                if number == 10:
                    print("writing", flush=True)

anyio.run(main)
"""


@pytest.mark.behaviour("lemon_core.101")
async def test_a_second_instance_is_told_that_the_first_drains_and_comes_up_after_it(
    paths: PathSettings,
) -> None:
    """Every refused start ends with an error, so that whoever restarts it may do so for ever."""
    with python(DRAINING, str(paths.home), "drain") as process:
        assert read_line(process) == "draining"
        for _ in range(6):
            with pytest.raises(RuntimeBusy, match="held by a draining server") as caught:
                await up_and_down(booting(paths, serve=True))
            assert caught.value.holder is not None
            assert caught.value.holder.pid == process.pid
    with anyio.fail_after(5):
        async with booting(paths, serve=True) as runtime:
            assert await runtime.store.get("things", "kept") == 1


@pytest.mark.behaviour("lemon_core.101")
async def test_an_owner_that_was_killed_while_it_wrote_is_succeeded(paths: PathSettings) -> None:
    with python(DRAINING, str(paths.home), "write") as process:
        assert read_line(process) == "writing"
    with anyio.fail_after(5):
        async with booting(paths, serve=True) as runtime:
            last = await runtime.store.get("things", "last")
            assert isinstance(last, int)
            assert last >= 10
            await runtime.store.put("things", "last", -1)


MIGRATING = """
import sqlite3, sys, anyio
from pathlib import Path
from lemon_core.clock import SystemClock
from lemon_core.paths import PathSettings
from lemon_core.state_lock import hold_state_lock
from lemon_core.store.sqlite_file import database_file

async def main():
    paths = PathSettings(Path(sys.argv[1]))
    async with hold_state_lock(paths.runtime_lock, "server", SystemClock()):
        db = sqlite3.connect(database_file(paths.store_dir), isolation_level=None)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE lemon_store_meta SET value='1000' WHERE name='format'")
        db.execute("CREATE TABLE half_done (x)")
        print("migrating", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.behaviour("lemon_core.101")
async def test_a_migration_whose_owner_was_killed_is_undone_and_holds_nobody_up(
    paths: PathSettings,
) -> None:
    async with booting(paths) as runtime:
        await runtime.store.put("things", "kept", 1)
    with python(MIGRATING, str(paths.home)) as process:
        assert read_line(process) == "migrating"
        with pytest.raises(RuntimeBusy, match=str(process.pid)):
            await up_and_down(booting(paths, serve=True))
    with anyio.fail_after(5):
        async with booting(paths, serve=True) as runtime:
            assert await runtime.store.get("things", "kept") == 1
