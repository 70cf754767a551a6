"""Marks from the environment (specification lemon_core 13)."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from lemon_core.paths import PathSettings
from lemon_core.runtime_env import BuildInfo, RuntimeEnv, build_info, source_root
from lemon_core.version import __version__

PATHS = PathSettings(Path("/home/me"))


def resolve(**environ: str) -> RuntimeEnv:
    return RuntimeEnv.resolve(environ, PATHS)


def test_the_defaults() -> None:
    assert resolve() == RuntimeEnv(
        control_port=4040,
        web_port=4080,
        sim_port=4090,
        lemon_root=source_root(),
        dotenv_dir=Path("/home/me/.lemon"),
        debug=False,
        node_name=socket.gethostname(),
        production=False,
    )


@pytest.mark.behaviour("lemon_core.38")
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


def test_the_build_knows_its_version_and_where_it_runs() -> None:
    info = build_info(channel="beta")
    assert (info.version, info.channel, info.mode) == (__version__, "beta", "release")
    assert info.python
    assert info.platform
    assert (info.commit, info.branch, info.dirty) == (None, None, None)


def test_a_package_says_of_itself_what_it_is(tmp_path: Path) -> None:
    program = tmp_path / "lib" / "app" / "lemon_core" / "runtime_env.py"
    program.parent.mkdir(parents=True)
    assert build_info(program=program).channel == "stable"
    told = tmp_path / "release.json"
    for text, expected in (
        ('{"channel": "preview", "commit": "abc"}', ("preview", "abc")),
        ('{"channel": "stable", "commit": null}', ("stable", None)),
        ("broken", ("stable", None)),
    ):
        told.write_text(text)
        info = build_info(program=program)
        assert (info.channel, info.commit, info.mode) == (*expected, "release")
    # Only in that place: a folder above a source tree may hold anything.
    other = tmp_path / "tree" / "apps" / "lemon_core" / "runtime_env.py"
    told.write_text('{"channel": "preview"}')
    assert build_info(program=other).channel == "stable"


def test_a_source_tree_is_asked_for_its_git_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The configuration of whoever runs the test does not count.
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    monkeypatch.setenv("GIT_DIR", "/nonexistent")

    def git(*args: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t", *args]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def facts() -> tuple[object, ...]:
        info = build_info(root=tmp_path)
        assert isinstance(info, BuildInfo)
        return info.mode, info.commit, info.branch, info.dirty

    assert facts() == ("release", None, None, None)
    git("init", "-b", "work")
    assert facts() == ("source", None, "work", False)
    (tmp_path / "file").write_text("x")
    git("add", "file")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert facts() == ("source", commit, "work", False)
    (tmp_path / "file").write_text("y")
    assert facts() == ("source", commit, "work", True)
    git("checkout", "--detach")
    assert facts() == ("source", commit, None, True)
    (tmp_path / ".git" / "HEAD").write_text("nonsense")
    assert facts() == ("source", None, None, None)
