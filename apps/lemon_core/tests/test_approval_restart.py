"""Questions over a restart of a whole runtime (specification lemon_core 7.5; DESIGN ruling 32)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import anyio
import pytest

from lemon_core.boot import boot
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.runtime import Runtime
from lemon_core.testing import scrubbed_environ, temp_home

pytestmark = pytest.mark.anyio

DESK = "lemon_core.tests.approval_desk"


@pytest.fixture(autouse=True)
def restored_tree() -> Iterator[None]:
    """Boot configures the process's logger tree; other tests want it as it was."""
    root = logging.getLogger("lemon")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def booting(paths: PathSettings, component: str) -> AbstractAsyncContextManager[Runtime]:
    """A runtime of one component."""
    environ = scrubbed_environ(paths.home)
    profile = Profile("test", components=(f"{DESK}:{component}",))
    return boot(profile, cwd=paths.home, environ=environ, paths=paths, serve=False)


@pytest.mark.behaviour("lemon_core.21")
async def test_a_shutdown_leaves_its_question_and_the_boot_settles_it() -> None:
    """It is settled before the components start."""
    with anyio.fail_after(5), temp_home() as paths:
        async with booting(paths, "asks") as runtime:
            (pending,) = await runtime.approvals.pending_approvals()
        async with booting(paths, "finds_nothing_open") as runtime:
            entries = await runtime.introspection.query(run_id="run_1")
            assert [(e.event_type, e.payload["approval_id"]) for e in entries] == [
                ("approval_timed_out", pending.id),
                ("approval_requested", pending.id),
            ]
            assert not await runtime.approvals.resolve(pending.id, "approve_once")
