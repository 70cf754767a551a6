"""The store that the configuration names, on PostgreSQL too (specification lemon_core 10.2)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from lemon_core.approvals import TOPIC
from lemon_core.boot import boot
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.runtime import Runtime
from lemon_core.state_lock import read_holder
from lemon_core.store import StoreUnavailable
from lemon_core.testing import scrubbed_environ, temp_home
from lemon_core.testing.postgres import PostgresServer

pytestmark = pytest.mark.anyio

DESK = "lemon_core.tests.approval_desk"
NAME = "LEMON_SHARED_STORE"


@pytest.fixture
def paths() -> Iterator[PathSettings]:
    with temp_home() as home:
        yield home


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A new, empty place on the server."""
    return postgres.fresh_url()


@pytest.fixture(autouse=True)
def restored_tree() -> Iterator[None]:
    """Boot configures the process's logger tree; other tests want it as it was."""
    root = logging.getLogger("lemon")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def booting(
    paths: PathSettings,
    environ: Mapping[str, str],
    *,
    component: str | None = None,
    **store: str,
) -> AbstractAsyncContextManager[Runtime]:
    """A runtime whose `[store]` section is `store`."""
    profile = Profile("test", components=(f"{DESK}:{component}",) if component else ())
    return boot(
        profile,
        cwd=paths.home,
        environ=scrubbed_environ(paths.home, {"LEMON_LOG_LEVEL": "warning", **environ}),
        paths=paths,
        serve=False,
        overrides={"store": store} if store else None,
    )


@asynccontextmanager
async def on(paths: PathSettings, url: str, **extra: str) -> AsyncIterator[Runtime]:
    """A runtime on the database at `url`."""
    environ = {"LEMON_STORE_BACKEND": "postgres", "LEMON_STORE_URL": url, **extra}
    async with booting(paths, environ) as runtime:
        yield runtime


async def test_the_url_comes_from_its_variable_and_goes_no_further(
    paths: PathSettings, url: str
) -> None:
    with anyio.fail_after(5):
        async with on(paths, url) as runtime:
            assert runtime.store.shared
            await runtime.store.put("things", "k", 1)
            assert url not in runtime.environ.values()
            assert url not in repr(runtime.config)
        assert not paths.store_dir.exists()
        async with on(paths, url) as runtime:
            assert await runtime.store.get("things", "k") == 1


async def test_the_variable_called_like_the_secret_holds_the_url(
    paths: PathSettings, url: str
) -> None:
    with anyio.fail_after(5):
        async with booting(paths, {NAME: url}, backend="postgres", url_secret=NAME) as runtime:
            assert runtime.store.shared
            assert url not in runtime.environ.values()


async def test_a_secret_that_was_stored_in_the_embedded_store_holds_the_url(
    paths: PathSettings, url: str
) -> None:
    with anyio.fail_after(5):
        async with booting(paths, {}) as runtime:
            await runtime.secrets.keys.init_master_key("file")
            await runtime.secrets.set(NAME, url)
        async with booting(paths, {}, backend="postgres", url_secret=NAME) as runtime:
            assert runtime.store.shared
            await runtime.store.ping()


@pytest.mark.behaviour("lemon_core.21")
async def test_two_homes_run_on_one_database(paths: PathSettings, url: str) -> None:
    """A database has no lock of one runtime, and another node's question stays open."""
    with anyio.fail_after(10), temp_home() as other:
        environ = {"LEMON_STORE_URL": url, "LEMON_GATEWAY_NODE_NAME": "one"}
        async with booting(paths, environ, component="asks", backend="postgres") as one:
            (pending,) = await one.approvals.pending_approvals()
            async with on(other, url, LEMON_GATEWAY_NODE_NAME="two") as two:
                assert read_holder(paths.runtime_lock) is not None
                assert await two.approvals.pending_approvals() == [pending]
                with two.bus.subscribe(TOPIC) as events:
                    assert await two.approvals.resolve(pending.id, "deny")
                    assert (await anext(events)).type == "approval_resolved"
                assert await one.approvals.pending_approvals() == []


@pytest.mark.behaviour("lemon_core.21")
async def test_a_node_settles_its_own_questions_after_a_restart(
    paths: PathSettings, url: str
) -> None:
    with anyio.fail_after(5):
        environ = {"LEMON_STORE_URL": url}
        async with booting(paths, environ, component="asks", backend="postgres") as runtime:
            (pending,) = await runtime.approvals.pending_approvals()
        async with on(paths, url) as runtime:
            assert await runtime.approvals.pending_approvals() == []
            assert not await runtime.approvals.resolve(pending.id, "approve_once")


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ({}, "set LEMON_STORE_URL, or store.url_secret"),
        ({"url_secret": NAME}, f"set LEMON_STORE_URL or {NAME}, or store the secret"),
    ],
)
async def test_without_a_url_the_start_fails_with_one_line(
    paths: PathSettings, store: dict[str, str], told: str
) -> None:
    with anyio.fail_after(5), pytest.raises(StoreUnavailable) as caught:
        async with booting(paths, {}, backend="postgres", **store):
            pytest.fail("booted")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not paths.store_dir.exists()


async def test_a_secret_that_is_not_there_is_named(paths: PathSettings) -> None:
    with anyio.fail_after(5):
        async with booting(paths, {}):
            pass
        with pytest.raises(StoreUnavailable, match=f"there is no secret '{NAME}'"):
            async with booting(paths, {}, backend="postgres", url_secret=NAME):
                pytest.fail("booted")
