"""Reloading the configuration (specification lemon_core 10.2, behaviour 32)."""

from __future__ import annotations

import logging
import os

import anyio
import anyio.lowlevel
import pytest

from lemon_core.bus import SYSTEM_TOPIC
from lemon_core.config.redact import HIDDEN
from lemon_core.config.reload import Change, ReloadResult
from lemon_core.store import StoreUnavailable
from lemon_core.system_events import ConfigReloaded, ConfigReloadFailed
from lemon_core.tests.config.homes import Home
from lemon_core.tests.config.reloads import Desk, published

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("lemon_core.32")]


@pytest.fixture
def desk(home: Home) -> Desk:
    home.write("[defaults]\nmodel = 'a'\n")
    return Desk(home)


async def test_nothing_changed_is_silent(desk: Desk) -> None:
    reloader = desk.reloader()
    with desk.bus.subscribe(SYSTEM_TOPIC) as events:
        assert await reloader.reload() == ReloadResult()
        os.utime(desk.home.global_file, (1, 1))  # touched, no more
        assert await reloader.reload() == ReloadResult()
    assert published(events) == []
    assert desk.applied == []
    assert desk.loads == [True]


async def test_a_change_is_taken_over_and_told_without_credentials(desk: Desk) -> None:
    reloader = desk.reloader()
    desk.home.write(
        """\
        [defaults]
        model = "b"
        [providers.openai]
        api_key = "sk-hidden"
        api_key_secret = "NAME"
        base_url = "https://x.example"
        """
    )
    desk.home.write_dotenv("SERVICE_TOKEN=t0p\n")
    with desk.bus.subscribe(SYSTEM_TOPIC) as events:
        result = await reloader.reload(reason="manual")
    assert result.changed_sources == ("files", "env")
    assert result.error is None
    assert result.diff["defaults.model"] == Change("a", "b")
    assert result.diff["providers.openai.api_key"] == Change(None, HIDDEN)
    assert result.diff["providers.openai.api_key_secret"] == Change(None, HIDDEN)
    assert result.diff["providers.openai.base_url"] == Change(None, "https://x.example")
    assert result.diff["env.SERVICE_TOKEN"] == Change(None, HIDDEN)
    (payload,) = published(events)
    assert isinstance(payload, ConfigReloaded)
    assert (payload.reason, payload.changed_sources) == ("manual", ["files", "env"])
    assert payload.changed_paths == list(result.diff)
    assert payload.diff is not None
    assert payload.diff["defaults.model"] == {"before": "a", "after": "b"}
    for secret in ("sk-hidden", "NAME", "t0p"):
        assert secret not in payload.model_dump_json()
    assert [loaded.config.defaults.model for loaded in desk.applied] == ["b"]
    assert reloader.current is desk.applied[0]
    assert desk.numbers == ["lemon.config.reload.start", "lemon.config.reload.stop"]


async def test_a_key_that_is_gone_is_told_too(desk: Desk) -> None:
    reloader = desk.reloader()
    desk.home.global_file.unlink()
    result = await reloader.reload()
    assert result.diff == {"defaults.model": Change("a", None)}


@pytest.mark.parametrize("text", ["[defaults\n", "[gateway]\nmax_concurrent_runs = 0\n"])
async def test_a_bad_file_keeps_the_last_good_configuration(
    desk: Desk, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    reloader = desk.reloader()
    good = reloader.current
    desk.home.write(text)
    with (
        desk.bus.subscribe(SYSTEM_TOPIC) as events,
        caplog.at_level(logging.ERROR, logger="lemon"),
    ):
        result = await reloader.reload(reason="watcher")
        assert await reloader.reload(reason="poll") == ReloadResult()  # told once
    assert result.error is not None
    assert str(desk.home.global_file) in result.error
    (payload,) = published(events)
    assert isinstance(payload, ConfigReloadFailed)
    assert (payload.error, payload.reason) == (result.error, "watcher")
    assert reloader.current is good
    assert desk.applied == []
    assert "lemon.config.reload.failed" in desk.numbers

    desk.home.write("[defaults]\nmodel = 'c'\n")
    assert (await reloader.reload()).diff == {"defaults.model": Change("a", "c")}


async def test_without_validation_what_is_usable_counts(desk: Desk) -> None:
    reloader = desk.reloader()
    desk.home.write("[defaults]\nmodel = 'b'\n[gateway]\nmax_concurrent_runs = 0\n")
    result = await reloader.reload(validate=False)
    assert result.diff == {"defaults.model": Change("a", "b")}


async def test_forced_it_is_read_and_told_although_nothing_changed(desk: Desk) -> None:
    reloader = desk.reloader()
    with desk.bus.subscribe(SYSTEM_TOPIC) as events:
        assert await reloader.reload(force=True) == ReloadResult()
    (payload,) = published(events)
    assert isinstance(payload, ConfigReloaded)
    assert (payload.changed_sources, payload.diff) == ([], {})


async def test_only_the_named_sources_are_looked_at(desk: Desk) -> None:
    reloader = desk.reloader()
    desk.home.write("[defaults]\nmodel = 'b'\n")
    assert await reloader.reload(["env"]) == ReloadResult()
    assert (await reloader.reload(["files"])).changed_sources == ("files",)


async def test_a_changed_secret_is_told_by_name_only(desk: Desk) -> None:
    reloader = desk.reloader()
    desk.marks = {"OLD": (1, None), "KEPT": (1, None)}
    assert await reloader.reload(["secrets"]) == ReloadResult()  # the first look
    desk.marks = {"NEW": (2, None), "KEPT": (2, None)}
    result = await reloader.reload()
    assert result.changed_sources == ("secrets",)
    assert result.diff == {
        "secrets.KEPT": Change(HIDDEN, HIDDEN),
        "secrets.NEW": Change(None, HIDDEN),
        "secrets.OLD": Change(HIDDEN, None),
    }
    desk.store_is_down = True
    with pytest.raises(StoreUnavailable):
        await reloader.reload()


async def test_reloads_run_one_after_the_other(desk: Desk) -> None:
    reloader, desk.gate = desk.reloader(), anyio.Event()
    desk.home.write("[defaults]\nmodel = 'b'\n")
    results: list[ReloadResult] = []

    async def reload() -> None:
        results.append(await reloader.reload())

    busy = [reloader.busy]
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(reload)
            while not desk.loads:
                await anyio.lowlevel.checkpoint()
            busy.append(reloader.busy)
            desk.gate.set()
    assert [*busy, reloader.busy] == [False, True, False]
    assert desk.loads == [True]  # the others found nothing changed any more
    assert [result.changed_sources for result in results] == [("files",), (), ()]


async def test_what_cannot_be_read_as_a_file_does_not_hang(desk: Desk) -> None:
    reloader = desk.reloader()
    desk.home.global_file.unlink()
    os.mkfifo(desk.home.global_file)
    with anyio.fail_after(5):
        result = await reloader.reload()
    assert result.error == f"{desk.home.global_file}: is not a regular file"
