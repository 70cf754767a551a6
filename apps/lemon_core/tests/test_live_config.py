"""The configuration of a runtime from its start on (specification lemon_core 10.1 and 10.2)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from lemon_core.boot import boot
from lemon_core.bus import SYSTEM_TOPIC, Subscription
from lemon_core.config.load import ConfigError
from lemon_core.events import Event
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.runtime import Runtime
from lemon_core.store.system_config import SystemConfigStore
from lemon_core.system_events import ConfigReloaded, ConfigReloadFailed
from lemon_core.testing import temp_home

pytestmark = pytest.mark.anyio


@pytest.fixture
def paths() -> Iterator[PathSettings]:
    with temp_home() as home:
        home.state_dir.mkdir()
        yield home


def booting(
    paths: PathSettings, *, serve: bool = False, environ: Mapping[str, str] | None = None
) -> AbstractAsyncContextManager[Runtime]:
    """A boot without components, in an empty project."""
    given = {"HOME": str(paths.home), **(environ or {})}
    return boot(Profile("test"), cwd=paths.home / "work", environ=given, paths=paths, serve=serve)


async def until(events: Subscription, event_type: str) -> Event:
    """The next event of the type."""
    async for event in events:
        if event.type == event_type:
            return event
    raise AssertionError("the bus has stopped")


@pytest.mark.behaviour("lemon_core.29", "lemon_core.104", "lemon_core.48")
@pytest.mark.parametrize("serve", [False, True])
async def test_the_previous_versions_file_starts_migrated(paths: PathSettings, serve: bool) -> None:
    """Without a terminal and without a question."""
    old = (
        "[agent]\nmodel = 'openai:x'\n[tools.web.search]\nmax_results = 3\n[runtime.cli]\nx = 1\n"
        "[kitchen]\noven = 200\n"
    )
    paths.config_file.write_text(old)
    with anyio.fail_after(5):
        async with booting(paths, serve=serve) as runtime:
            assert runtime.config.defaults.model == "openai:x"
            assert runtime.config.runtime.tools.web.search.max_results == 3
            report, unknown = runtime.warnings
    backup = paths.config_file.with_name("config.toml.pre-update-bak")
    assert report == (
        f"{paths.config_file}: migrated: [agent] is now [defaults]; [tools] is now "
        f"[runtime.tools]; runtime.cli was dropped; the old file is {backup}"
    )
    assert unknown == f"{paths.config_file}:5: kitchen: unknown section, ignored"
    assert backup.read_text() == old
    with anyio.fail_after(5):
        async with booting(paths, serve=serve) as runtime:
            assert runtime.warnings == (unknown,)


@pytest.mark.behaviour("lemon_core.29", "lemon_core.104")
async def test_a_file_that_cannot_be_written_starts_too(paths: PathSettings) -> None:
    paths.config_file.write_text("[agent]\nmodel = 'openai:x'\n")
    paths.config_file.chmod(0o444)
    with anyio.fail_after(5):
        async with booting(paths) as runtime:
            assert runtime.config.defaults.model == "openai:x"
            assert [line.split(": ")[1] for line in runtime.warnings] == ["not changed", "agent"]


@pytest.mark.behaviour("lemon_core.104", "lemon_core.48")
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[agent]\nmodel = 'm'\n[gateway]\nmax_concurrent_runs = 0\n", ":4: gateway.max_conc"),
        ("[agent]\nthinking_level = 'huge'\n", ":2: defaults.thinking_level: must be"),
        ("[gateway\n", ":1: malformed TOML"),
    ],
)
async def test_only_what_means_nothing_stops_the_start(
    paths: PathSettings, text: str, place: str
) -> None:
    paths.config_file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        async with booting(paths):
            pytest.fail("started")
    assert f"{paths.config_file}{place}" in str(caught.value)


@pytest.mark.behaviour("lemon_core.32")
async def test_a_server_follows_its_files(paths: PathSettings) -> None:
    paths.config_file.write_text("[defaults]\nmodel = 'a'\n")
    environ = {"KEPT": "by the process"}
    with anyio.fail_after(5):
        async with booting(paths, serve=True, environ=environ) as runtime:
            with runtime.bus.subscribe(SYSTEM_TOPIC) as events:
                (paths.state_dir / ".env").write_text("ADDED=1\nKEPT=by the file\n")
                paths.config_file.write_text(
                    "[defaults]\nmodel = 'b'\n[logging]\nlevel = 'error'\n"
                )
                # The watch starts in the background; what came before it is found like this.
                await runtime.config_reloader.reload()
                event = await until(events, "config_reloaded")
                assert isinstance(event.payload, ConfigReloaded)
                assert runtime.config.defaults.model == "b"
                assert runtime.environ["ADDED"] == "1"
                assert runtime.environ["KEPT"] == "by the process"
                assert runtime.config_cache.get(runtime.cwd).config.defaults.model == "b"
                assert logging.getLogger("lemon").level == logging.ERROR

                done = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_touch, paths.config_file, done)
                    failed = await until(events, "config_reload_failed")
                    done.set()
                assert isinstance(failed.payload, ConfigReloadFailed)
                assert f"{paths.config_file}:1: malformed TOML" in failed.payload.error
                assert runtime.config.defaults.model == "b"


async def _touch(path: Path, done: anyio.Event) -> None:
    """Break the file, again in case that the watch was not there yet, and let it rest."""
    while not done.is_set():
        path.write_text("[defaults\n")
        os.utime(path)
        with anyio.move_on_after(0.7):
            await done.wait()


@pytest.mark.behaviour("lemon_core.32")
async def test_an_imported_secret_does_not_come_back_into_the_environment(
    paths: PathSettings,
) -> None:
    (paths.state_dir / ".env").write_text("A_KEY=s3cret\n")
    with anyio.fail_after(5):
        async with booting(paths) as runtime:
            await runtime.secrets.keys.init_master_key()
            await runtime.secrets.import_from_env("A_KEY", delete_after=True)
            (paths.state_dir / ".env").write_text("A_KEY=s3cret\nOTHER=1\n")
            result = await runtime.config_reloader.reload(["files", "env"])
            assert result.changed_sources == ("env",)
            assert "A_KEY" not in runtime.environ
            assert runtime.environ["OTHER"] == "1"


async def test_stored_overrides_survive_a_reload(paths: PathSettings) -> None:
    async with booting(paths) as runtime:
        await SystemConfigStore(runtime.store).put("defaults.model", "stored")
        await runtime.config_reloader.reload(force=True)
        assert runtime.config.defaults.model == "stored"
