"""Profiles as data (specification lemon_core 13; lemon_cli 1.1)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lemon_core.commands import CommandSpec
from lemon_core.profiles import (
    Profile,
    ProfileError,
    app_of,
    choose_profile,
    load_profile,
    load_target,
    parse_profile,
    render_profile,
    with_commands,
)
from lemon_core.tests import fake_app

SOURCE = """
name = "slice"
description = "The first slice"
components = ["lemon_gateway.app:component", "lemon_router.app:component"]
executor = "coding_agent.executor:Executor"
libraries = ["lemon_mcp"]
command_apps = ["lemon_cli"]

[config.router]
engine_runtime = "grpc"
"""


def test_a_source_profile_reads() -> None:
    assert parse_profile(SOURCE, where="slice.toml") == Profile(
        name="slice",
        description="The first slice",
        components=("lemon_gateway.app:component", "lemon_router.app:component"),
        executor="coding_agent.executor:Executor",
        libraries=("lemon_mcp",),
        config={"router": {"engine_runtime": "grpc"}},
        command_apps=("lemon_cli",),
    )


def test_a_built_profile_reads_back_equal() -> None:
    profile = Profile(
        name='qu"ote \\ \x7f',
        components=("a.app:component",),
        config={"gateway": {"rpc": {"enabled": True, "listen": ["unix:x"]}, "a b": 1}},
        commands={
            "lemon_cli": (CommandSpec("run", "Run it", "lemon_cli.run:app", True),),
            "lemon_core": (CommandSpec("doctor", "Look", "lemon_core.doctor:app"),),
        },
    )
    assert parse_profile(render_profile(profile), where="x") == profile
    found = profile.find_command("doctor")
    assert found is not None
    assert found.target == "lemon_core.doctor:app"
    assert profile.find_command("other") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = ", "not valid TOML"),
        ("description = 'x'", "name is missing"),
        ("name = 'x'\ncomponent = []", "unknown key 'component'"),
        ("name = 'x'\ncomponents = 'a'", "components is not a list of text"),
        ("name = 'x'\nexecutor = 1", "executor is not text"),
        ("name = 'x'\nconfig = 1", "config is not a table"),
        ("name = 'x'\ncommands = 1", "commands is not a list of tables"),
        ("name = 'x'\n[[commands]]\nname = 'run'", "a command is malformed"),
    ],
)
def test_a_wrong_profile_names_file_and_reason(text: str, reason: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, where="profiles/x.toml")
    assert str(caught.value).startswith("profiles/x.toml: ")
    assert reason in str(caught.value)


def test_commands_are_taken_from_the_apps_when_the_profile_is_built() -> None:
    source = Profile("x", command_apps=("lemon_core.tests.fake_app",))
    built = with_commands(source)
    assert built.command_apps == ()
    assert built.commands == {"lemon_core.tests.fake_app": tuple(fake_app.cli.COMMANDS)}
    with pytest.raises(ProfileError, match="no_such_app"):
        with_commands(Profile("x", command_apps=("no_such_app",)))


def test_two_apps_cannot_claim_one_word() -> None:
    spec = CommandSpec("say", "Say it", "x.y:z")
    with pytest.raises(ProfileError, match="'say' is claimed by lemon_x and"):
        with_commands(
            Profile(
                "x",
                command_apps=("lemon_core.tests.fake_app",),
                commands={"lemon_x": (spec,)},
            )
        )


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.toml").write_text(f"name = '{name}'\n")


@pytest.mark.behaviour("lemon_core.38")
def test_the_variable_chooses_and_an_unknown_name_falls_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "runtime_min", "runtime_full")

    def chosen(variable: str | None) -> str:
        environ = {} if variable is None else {"LEMON_RUNTIME_PROFILE": variable}
        return choose_profile(tmp_path, environ=environ, default="runtime_full").name

    assert (chosen(None), chosen(""), chosen("runtime_min")) == (
        "runtime_full",
        "runtime_full",
        "runtime_min",
    )
    with caplog.at_level(logging.WARNING, logger="lemon"):
        assert chosen("other") == "runtime_full"
    assert [record.message for record in caplog.records] == ["profile.unknown"]


@pytest.mark.behaviour("lemon_core.38")
def test_an_unknown_name_from_code_raises(tmp_path: Path) -> None:
    write(tmp_path, "runtime_min")
    with pytest.raises(ProfileError, match="there are: runtime_min"):
        choose_profile(tmp_path, environ={}, default="runtime_min", name="other")


def test_a_missing_file_is_told_by_path(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=str(tmp_path / "x.toml")):
        load_profile(tmp_path / "x.toml")


def test_dotted_paths() -> None:
    assert load_target("lemon_core.profiles:Profile") is Profile
    assert app_of("lemon_gateway.app:component") == "lemon_gateway"
    for path in ("lemon_core.profiles", ":x", ""):
        with pytest.raises(ValueError, match="dotted path"):
            load_target(path)
