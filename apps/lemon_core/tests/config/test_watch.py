"""Following the files of the configuration (specification lemon_core 10.2, behaviour 32)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from lemon_core.bus import SYSTEM_TOPIC
from lemon_core.config.reload import ConfigReloader
from lemon_core.config.watch import DEBOUNCE_MS, POLL_MS, ConfigWatcher, Watch, follow_files
from lemon_core.system_events import SecretChanged
from lemon_core.testing import FakeClock
from lemon_core.tests.config.homes import Home
from lemon_core.tests.config.reloads import Desk

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("lemon_core.32")]


class Changes:
    """A fake of what the operating system tells."""

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure, self._told = failure, anyio.Event()

    async def __call__(self, paths: Iterable[Path], changed: Callable[[], None]) -> None:
        if self._failure is not None:
            raise self._failure
        while True:
            await self._told.wait()
            self._told = anyio.Event()
            changed()

    async def tell(self) -> None:
        """A change, noticed when this returns."""
        self._told.set()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()


async def loaded(desk: Desk, count: int) -> None:
    """Wait until the reloader has read the files `count` times."""
    while len(desk.loads) < count:
        # Files are read in a thread, which the fake clock does not wait for.
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def desk(home: Home) -> Desk:
    home.write("[defaults]\nmodel = 'a'\n")
    return Desk(home)


def watching(desk: Desk, clock: FakeClock, watch: Watch) -> tuple[ConfigReloader, ConfigWatcher]:
    reloader = desk.reloader()
    return reloader, ConfigWatcher(reloader, clock, desk.bus, watch)


async def test_a_burst_of_changes_is_one_reload_after_it_ended(desk: Desk) -> None:
    clock, changes = FakeClock(), Changes()
    _, watcher = watching(desk, clock, changes)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.serve)
            await clock.wait_for_sleepers(1)
            for model in "bcd":
                desk.home.write(f"[defaults]\nmodel = '{model}'\n")
                await changes.tell()
                await clock.wait_for_sleepers(2)
                await clock.advance(DEBOUNCE_MS - 1)
            assert desk.loads == []
            await clock.advance(DEBOUNCE_MS)
            await loaded(desk, 1)
            while not desk.applied:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert [it.config.defaults.model for it in desk.applied] == ["d"]


@pytest.mark.parametrize("failure", [OSError("no more watches"), ImportError("no watchfiles")])
async def test_without_a_watch_the_files_are_looked_at_every_five_seconds(
    desk: Desk, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    _, watcher = watching(desk, clock, Changes(failure))
    with anyio.fail_after(5), caplog.at_level(logging.WARNING, logger="lemon"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.serve)
            await clock.wait_for_sleepers(1)
            desk.home.write("[defaults]\nmodel = 'b'\n")
            await clock.advance(POLL_MS)
            await loaded(desk, 1)
            await clock.wait_for_sleepers(1)
            tasks.cancel_scope.cancel()
    assert [it.config.defaults.model for it in desk.applied] == ["b"]
    assert "config.watch_unavailable" in [record.message for record in caplog.records]


async def test_a_stored_secret_is_told_at_once_and_a_silent_store_ends_nothing(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    _, watcher = watching(desk, clock, Changes())
    told = SecretChanged(owner="default", name="KEY", action="set")
    with anyio.fail_after(5), caplog.at_level(logging.WARNING, logger="lemon"):
        async with anyio.create_task_group() as tasks:
            with desk.bus.subscribe(SYSTEM_TOPIC) as events:
                tasks.start_soon(watcher.serve)
                await clock.wait_for_sleepers(1)
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                desk.store_is_down = True
                desk.bus.publish_event(SYSTEM_TOPIC, "secret_changed", told)
                desk.store_is_down = not await _logged(caplog)
                desk.marks["KEY"] = (1, None)
                desk.bus.publish_event(SYSTEM_TOPIC, "secret_changed", told)
                types = [(await events.__anext__()).type for _ in range(3)]
            tasks.cancel_scope.cancel()
    assert types == ["secret_changed", "secret_changed", "config_reloaded"]


async def _logged(caplog: pytest.LogCaptureFixture) -> bool:
    while not caplog.records:
        await anyio.lowlevel.checkpoint()
    return caplog.records[0].message == "config.secrets_not_looked_at"


async def test_real_files_are_followed_also_when_they_are_replaced(desk: Desk) -> None:
    """Under real names and through a link, edited in place and replaced as editors do."""
    target = desk.home.root / "dotfiles.toml"
    target.write_text("")
    link = desk.home.paths.state_dir / ".env"
    link.symlink_to(target)
    new = desk.home.global_file.with_name("config.toml.new")
    noticed: list[anyio.Event] = [anyio.Event()]
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            watched = [desk.home.global_file, link]
            tasks.start_soon(follow_files, watched, lambda: noticed[-1].set())
            for change in (
                lambda: desk.home.global_file.write_text("a = 1\n"),
                lambda: (new.write_text("a = 2\n"), new.replace(desk.home.global_file)),
                lambda: target.write_text("A=1\n"),
            ):
                noticed.append(anyio.Event())
                # The watch starts in a thread of its own, so the change is made until it is seen.
                while not noticed[-1].is_set():
                    change()
                    with anyio.move_on_after(0.1):
                        await noticed[-1].wait()
            tasks.cancel_scope.cancel()


async def test_folders_that_are_missing_are_not_waited_for(desk: Desk) -> None:
    with anyio.fail_after(5):
        await follow_files([desk.home.root / "none" / "config.toml"], lambda: None)
