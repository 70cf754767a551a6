"""Marks from the environment (specification lemon_core 13)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lemon_core.paths import PathSettings
from lemon_core.runtime_env import RuntimeEnv, build_info
from lemon_core.version import __version__

PATHS = PathSettings(Path("/home/me"))


def resolve(**environ: str) -> RuntimeEnv:
    return RuntimeEnv.resolve(environ, PATHS)


def test_the_defaults() -> None:
    assert resolve() == RuntimeEnv(
        control_port=4040,
        web_port=4080,
        sim_port=4090,
        lemon_root=None,
        dotenv_dir=Path("/home/me/.lemon"),
        debug=False,
        node_name=socket.gethostname(),
        production=False,
    )


def test_everything_can_be_set() -> None:
    env = resolve(
        LEMON_CONTROL_PLANE_PORT="1",
        LEMON_WEB_PORT="65535",
        LEMON_SIM_UI_PORT=" 5000 ",
        LEMON_PATH="~/src",
        LEMON_DOTENV_DIR="/etc/lemon",
        LEMON_LOG_LEVEL="debug",
        LEMON_GATEWAY_NODE_NAME="node",
        RELEASE_NAME="lemon",
    )
    assert env == RuntimeEnv(
        1, 65535, 5000, Path("/home/me/src"), Path("/etc/lemon"), True, "node", True
    )
    assert resolve(LEMON_DEBUG="1").debug
    assert not resolve(LEMON_DEBUG="0").debug
    assert resolve(LEMON_ENV="prod").production


@pytest.mark.behaviour("lemon_core.38")
@pytest.mark.parametrize("text", ["0", "65536", "-1", "4_0", "4.0", "x", "", "\u0664\u0660"])
def test_what_is_no_port_reads_as_the_default(text: str) -> None:
    assert resolve(LEMON_CONTROL_PLANE_PORT=text).control_port == 4040


def test_the_build_knows_its_version() -> None:
    assert build_info().version == __version__
