"""The life of the built server in the background (specification lemon_cli 2.4, 10.13)."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lemon_core.state_lock import read_holder
from tools.e2e.tests.stack import Home, document, user

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def daemon_user() -> AsyncIterator[Home]:
    """A user whose background server does not outlive the test."""
    async with user() as home:
        try:
            yield home
        finally:
            holder = read_holder(home.paths.runtime_lock)
            if holder is not None and holder.pid > 0:
                os.kill(holder.pid, signal.SIGKILL)


@pytest.mark.behaviour("lemon_cli.13")
async def test_the_server_in_the_background() -> None:
    async with daemon_user() as home:
        begun = await home.lemon("daemon")
        assert begun.code == 0, begun
        found = re.search(r"\(pid (\d+)\)", begun.out)
        assert found is not None
        pid = int(found[1])
        status = await document(home, "status")
        assert (status["state"], status["pid"]) == ("running", pid)
        assert {"router", "gateway"} <= status["listening"].keys()
        again = await home.lemon("daemon")
        assert (again.code, again.out) == (0, f"Lemon is running already (pid {pid}).")
        restarted = await home.lemon("restart")
        assert restarted.code == 0, restarted
        assert (await document(home, "status"))["pid"] != pid
        ended = await home.lemon("stop")
        assert (ended.code, ended.out.endswith("was stopped.")) == (0, True)
        assert (await document(home, "status", code=1))["state"] == "not_running"
        assert "In another terminal" in (await home.lemon("daemon", "logs")).out


async def test_setup_without_a_person() -> None:
    async with user() as home:
        ended = await home.lemon("setup", "-n")
        assert (ended.code, "Setup is complete." in ended.out) == (0, True), ended
        alone = await home.lemon()
        assert (alone.code, alone.out) == (2, "")
