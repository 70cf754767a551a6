"""A configuration that cannot be used (specification lemon_core 10.1; DESIGN ruling 30)."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
import typer

from lemon_core.boot import boot
from lemon_core.cli.config import app as config
from lemon_core.cli.doctor import app as doctor
from lemon_core.commands import CommandContext
from lemon_core.config.load import ConfigError, inspect_config
from lemon_core.profiles import Profile
from lemon_core.testing import scrubbed_environ, temp_home
from lemon_core.tests.config.homes import Home

BROKEN = [
    ("[gateway\nhealth_port = 2\n", 1, "malformed TOML"),
    ("[gateway]\nhealth_port = 'two'\n", 2, "gateway.health_port: must be a whole number"),
]


@pytest.mark.behaviour("lemon_core.48")
@pytest.mark.anyio
@pytest.mark.parametrize(("text", "line", "told"), BROKEN)
async def test_nothing_starts_and_the_place_is_told(text: str, line: int, told: str) -> None:
    with temp_home() as paths, anyio.fail_after(5):
        paths.state_dir.mkdir(exist_ok=True)
        paths.config_file.write_text(text)
        environ = scrubbed_environ(paths.home)
        with pytest.raises(ConfigError) as caught:
            async with boot(Profile("p"), cwd=paths.home, environ=environ, paths=paths):
                pass
        (error,) = caught.value.errors
        assert error.startswith(f"{paths.config_file}:{line}: {told}")
        assert not paths.runtime_lock.exists()
        assert not paths.store_dir.exists()


@pytest.mark.behaviour("lemon_core.48")
@pytest.mark.anyio
async def test_an_unknown_key_warns_and_the_start_goes_on() -> None:
    with temp_home() as paths, anyio.fail_after(5):
        paths.state_dir.mkdir(exist_ok=True)
        paths.config_file.write_text("[gateway]\nhelth_port = 1\n")
        environ = scrubbed_environ(paths.home)
        async with boot(
            Profile("p"), cwd=paths.home, environ=environ, paths=paths, serve=False
        ) as runtime:
            (warning,) = runtime.warnings
    assert warning.startswith(f"{paths.config_file}:2: gateway.helth_port: unknown key, ignored")


@pytest.mark.behaviour("lemon_core.48")
@pytest.mark.parametrize("place", ["project", "home"])
@pytest.mark.parametrize(("text", "line", "told"), BROKEN)
@pytest.mark.parametrize("words", [["doctor", "--json"], ["config", "validate", "--json"]])
def test_doctor_and_config_run_on_a_broken_file_and_say_what_is_wrong(
    home: Home,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    text: str,
    line: int,
    told: str,
    place: str,
) -> None:
    home.write(text)
    home.project.mkdir()
    assert call(home, words, home.root / place) == 1
    report = json.loads(capsys.readouterr().out)
    assert f"{home.global_file}:{line}: {told}" in json.dumps(report, ensure_ascii=False)


@pytest.mark.behaviour("lemon_core.48")
def test_config_shows_what_can_be_used_of_a_broken_file(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write("[gateway]\nhealth_port = 'two'\nmax_concurrent_runs = 7\n")
    home.project.mkdir()
    assert call(home, ["config", "show", "--json"], home.project) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["gateway.max_concurrent_runs"]["value"] == 7
    assert settings["gateway.health_port"]["layer"] == "default"


def call(home: Home, words: list[str], cwd: Path) -> int:
    """The exit code of a command of core."""
    apps = {"doctor": doctor, "config": config}
    environ = {"HOME": str(home.paths.home)}
    context = CommandContext(Profile("p"), environ, home.paths, cwd)
    command = typer.main.get_command(apps[words[0]])
    code: int = command.main(words[1:], "lemon", standalone_mode=False, obj=context)
    return code


def test_looking_at_a_broken_file_raises_nothing(home: Home) -> None:
    home.write("[gateway]\nengine = 'x'\nhealth_port = 'two'\nmax_concurrent_runs = 7\n")
    loaded, errors = inspect_config(None, paths=home.paths, environ={})
    assert loaded.config.gateway.max_concurrent_runs == 7
    assert [line.split(": ")[1] for line in errors] == ["gateway.engine", "gateway.health_port"]
