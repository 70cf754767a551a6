"""The file layout (specification lemon_core 2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.paths import PathSettings, default_cwd, project_config, project_state_dir

HOME = Path("/home/me")


def test_everything_lies_below_the_home_directory() -> None:
    paths = PathSettings(HOME)
    assert paths.state_dir == HOME / ".lemon"
    assert paths.config_file == HOME / ".lemon" / "config.toml"
    assert paths.checkpoint_dir == HOME / ".lemon" / "checkpoints"
    assert project_state_dir(Path("/src")) == Path("/src/.lemon")
    assert project_config(Path("/src")) == Path("/src/.lemon/config.toml")


def test_parts_can_be_moved() -> None:
    moved = PathSettings(HOME, state=Path("/var/lemon"), checkpoints=Path("/big"))
    assert moved.config_file == Path("/var/lemon/config.toml")
    assert moved.store_dir == Path("/var/lemon/store")
    assert moved.checkpoint_dir == Path("/big")
    assert PathSettings(HOME, config=Path("/etc/lemon.toml")).config_file == Path("/etc/lemon.toml")


def test_the_home_is_asked_for_at_each_call() -> None:
    assert PathSettings.resolve({"HOME": "/a"}).home == Path("/a")
    assert PathSettings.resolve({"HOME": "/b"}).home == Path("/b")


def test_the_default_directory_is_configured_or_home_or_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, home = tmp_path / "home" / "work", tmp_path / "home"
    work.mkdir(parents=True)
    paths = PathSettings(home)
    assert default_cwd(str(work), paths) == work
    assert default_cwd("  ~/work ", paths) == work
    for useless in (None, "", "   ", "~/missing", str(tmp_path / "no")):
        assert default_cwd(useless, paths) == home
    monkeypatch.chdir(work)
    assert default_cwd(None, PathSettings(tmp_path / "gone")) == work
