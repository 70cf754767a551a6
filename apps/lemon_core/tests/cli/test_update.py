"""`lemon update` (specification lemon_core 17, lemon_cli 7)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import anyio
import anyio.from_thread
import pytest
import typer

from lemon_core.cli.update import UpdateOptions, app, run_update
from lemon_core.commands import CommandContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.testing.releases import ReleaseServer, install, release_server, seen
from lemon_core.tests.cli.commands import run_command
from lemon_core.update_errors import UpdateRefused
from lemon_core.update_manifest import Machine

OLD, NEW = "2026.10.3", "2026.11.0"


@pytest.fixture
def server() -> Iterator[ReleaseServer]:
    """In a thread with a loop of its own: the command runs its own loop."""
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(release_server()) as running,
    ):
        assert threading.current_thread() is threading.main_thread()
        yield running


def context(
    home: Path, server: ReleaseServer | None, extra: Mapping[str, str] | None = None
) -> CommandContext:
    environ = {"HOME": str(home), **(extra or {})}
    if server is not None:
        environ["LEMON_UPDATE_MANIFEST_URL"] = server.manifest_url
    return CommandContext(Profile("runtime_min"), environ, PathSettings(home), home)


def offer(server: ReleaseServer, version: str = NEW, **manifest: object) -> None:
    server.offer(version, platform=Machine.here("p").platform, manifest=dict(manifest))


def test_the_installers_source_is_used_when_no_variable_names_one(
    tmp_path: Path, server: ReleaseServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.offer(NEW, folder="stable/latest/", platform=Machine.here("p").platform)
    paths = PathSettings(tmp_path)
    program = install(paths, OLD, current=OLD).resolve()
    source = paths.versions_dir / "source"
    source.write_text(f"{server.url}/{{channel}}/{{version}}/manifest.json\n")
    assert run_update(context(tmp_path, None), UpdateOptions(check=True), program=program) == 0
    assert NEW in capsys.readouterr().out
    assert server.requests == ["stable/latest/manifest.json"]


def test_an_update_is_told_with_its_progress_on_stderr(
    tmp_path: Path, server: ReleaseServer, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(server)
    paths, program = PathSettings(tmp_path), install(PathSettings(tmp_path), OLD, current=OLD)
    # The file as the running program knows it: inside the release, not through the link.
    program = program.resolve()
    told = context(tmp_path, server)
    assert run_update(told, UpdateOptions(check=True), program=program) == 0
    assert capsys.readouterr().out == (
        f"Lemon {NEW} can be installed: lemon update (in use: {OLD})\n"
    )
    assert run_update(told, UpdateOptions(), program=program) == 0
    out, err = capsys.readouterr()
    assert out == f"Lemon {NEW} is in use now; restart a running Lemon: lemon restart\n"
    assert err.splitlines() == [
        f"lemon: downloading {NEW}",
        "lemon: 0 % of 0 MiB",
        "lemon: 100 % of 0 MiB",
        f"lemon: unpacking {NEW}",
        f"lemon: switching to {NEW}",
    ]
    assert seen(paths)["current"] == NEW
    assert run_update(told, UpdateOptions(), program=program) == 0
    assert capsys.readouterr().out.startswith(f"nothing to do: Lemon {NEW} is in use; restart")
    assert run_update(told, UpdateOptions(rollback=True), program=program) == 0
    assert capsys.readouterr().out == f"Lemon {OLD} is in use now\n"


def test_json_is_one_document(
    tmp_path: Path, server: ReleaseServer, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(server)
    program = install(PathSettings(tmp_path), OLD, current=OLD).resolve()
    options = UpdateOptions(check=True, as_json=True)
    assert run_update(context(tmp_path, server), options, program=program) == 0
    assert json.loads(capsys.readouterr().out) == {
        "current_version": OLD,
        "latest_version": NEW,
        "update_available": True,
        "update_applied": False,
        "restart_required": False,
        "message": f"Lemon {NEW} can be installed: lemon update (in use: {OLD})",
    }


def test_channel_and_pinned_version_come_from_the_configuration(
    tmp_path: Path, server: ReleaseServer
) -> None:
    offer(server, "2026.11.0-rc.1", channel="preview")
    paths = PathSettings(tmp_path)
    program = install(paths, OLD, current=OLD).resolve()
    paths.config_file.write_text('[runtime]\nchannel = "preview"\n')
    with pytest.raises(UpdateRefused, match="exact version"):
        run_update(context(tmp_path, server), UpdateOptions(), program=program)
    paths.config_file.write_text(
        '[runtime]\nchannel = "preview"\npinned_version = "2026.11.0-rc.1"\n'
    )
    assert run_update(context(tmp_path, server), UpdateOptions(), program=program) == 0
    assert seen(paths)["current"] == "2026.11.0-rc.1"


def test_a_build_without_a_source_says_so(tmp_path: Path) -> None:
    program = install(PathSettings(tmp_path), OLD, current=OLD).resolve()
    with pytest.raises(UpdateRefused, match="this build has no update source"):
        run_update(context(tmp_path, None), UpdateOptions(check=True), program=program)


def test_a_foreign_installation_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "opt" / "lib" / "update.py"
    with pytest.raises(UpdateRefused, match="the way it was installed"):
        run_update(context(tmp_path, None), UpdateOptions(), program=program)


def in_source_tree(tmp_path: Path) -> Path:
    program = tmp_path / "tree" / "apps" / "lemon_core" / "cli" / "update.py"
    program.parent.mkdir(parents=True)
    (tmp_path / "tree" / "MODULE.bazel").touch()
    return program


def test_a_source_tree_migrates_the_configuration_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, paths = in_source_tree(tmp_path), PathSettings(tmp_path)
    paths.state_dir.mkdir()
    paths.config_file.write_text('[agents.helper]\nmodel = "m"\n')
    told = context(tmp_path, None)
    assert run_update(told, UpdateOptions(check=True), program=program) == 0
    assert "has retired sections" in capsys.readouterr().out
    assert "agents.helper" in paths.config_file.read_text()
    assert run_update(told, UpdateOptions(), program=program) == 0
    assert "this is a source tree: only the configuration" in capsys.readouterr().out
    assert "profiles.helper" in paths.config_file.read_text()
    assert run_update(told, UpdateOptions(as_json=True), program=program) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["source_tree"], document["migration_applied"]) == (True, False)
    with pytest.raises(typer.BadParameter, match="no releases"):
        run_update(told, UpdateOptions(rollback=True), program=program)


@pytest.mark.behaviour("lemon_cli.20")
def test_a_migration_does_nothing_more_the_second_time_and_names_engine_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, paths = in_source_tree(tmp_path), PathSettings(tmp_path)
    paths.state_dir.mkdir()
    paths.config_file.write_text('[agent]\nengine = "lemon"\ntheme = "x"\n')
    told = context(tmp_path, None)
    assert run_update(told, UpdateOptions(as_json=True), program=program) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["migration_applied"], first["engine_keys"]) == (True, ["agent.engine"])
    after = paths.config_file.read_bytes()
    # Nobody but its owner knows what an engine key was for: it stays where it is.
    assert b'engine = "lemon"' in after
    assert run_update(told, UpdateOptions(), program=program) == 0
    out, err = capsys.readouterr()
    assert "nothing to migrate" in out
    assert "agent.engine selects an engine and has to be removed by hand" in err
    assert paths.config_file.read_bytes() == after


def test_another_file_can_be_migrated_in_a_source_tree_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[agents.helper]\nmodel = "m"\n')
    wanted = UpdateOptions(config_path=Path("other.toml"))
    told = context(tmp_path, None)
    assert run_update(told, wanted, program=in_source_tree(tmp_path)) == 0
    assert "profiles.helper" in other.read_text()
    assert not PathSettings(tmp_path).state_dir.exists()
    program = install(PathSettings(tmp_path), OLD, current=OLD).resolve()
    with pytest.raises(typer.BadParameter, match="for source trees"):
        run_update(told, wanted, program=program)


def test_the_bare_word_updates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tests run in a source tree, where that migrates the configuration."""
    assert run_command(app, home=tmp_path) == 0
    assert "nothing to migrate" in capsys.readouterr().out


def test_a_rollback_takes_no_other_options(tmp_path: Path) -> None:
    for option in (["--check"], ["--channel", "stable"], ["--version", NEW]):
        with pytest.raises(typer.BadParameter, match="--rollback"):
            run_command(app, "--rollback", *option, home=tmp_path)
