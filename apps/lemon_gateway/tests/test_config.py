"""Settings from the section, and the directory a run works in."""

from __future__ import annotations

from pathlib import Path

import pytest

from lemon_core.config.gateway import GatewaySection
from lemon_core.execution_context import Workspace
from lemon_core.journal import JournalLimits
from lemon_core.paths import PathSettings
from lemon_gateway.config import (
    GatewaySettings,
    missing_projects,
    working_directory,
    workspace_dir,
)
from lemon_gateway.errors import WorkspaceEscape
from lemon_gateway.tests.fakes import request


def test_settings_come_from_the_section(tmp_path: Path) -> None:
    """Specification lemon_gateway 12: defaults, and values that are set."""
    paths = PathSettings(tmp_path)
    assert GatewaySettings.of_section(GatewaySection(), "host-1", paths) == GatewaySettings(
        node_id="host-1", peer_roots=(str(tmp_path.resolve()),)
    )
    section = GatewaySection.model_validate(
        {
            "max_concurrent_runs": 7,
            "require_engine_lock": False,
            "engine_lock_reap_interval_ms": 9,
            "rpc": {"node_id": "east", "journal_max_events": 5, "journal_retention_ms": 3},
        }
    )
    settings = GatewaySettings.of_section(section, "host-1", paths)
    assert (settings.node_id, settings.max_concurrent_runs) == ("east", 7)
    assert not settings.require_engine_lock
    assert settings.engine_lock_reap_interval_ms == 9
    assert settings.journal == JournalLimits(max_events=5, retention_ms=3)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with a folder, and links that lead out of it and back in."""
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project" / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "project" / "in").symlink_to(tmp_path / "project" / "src")
    return tmp_path


def resolve(tree: Path, cwd: str | None, *, home: Path | None = None) -> str:
    workspace = Workspace.at(str(tree / "project"))
    wanted = request("run_1", cwd=cwd, workspace=workspace)
    return working_directory(wanted, PathSettings(home or tree))


@pytest.mark.parametrize("blank", [None, "", "   "])
def test_a_blank_directory_is_the_context_s(tree: Path, blank: str | None) -> None:
    """Specification lemon_gateway 3.5: blank means the context's cwd."""
    assert resolve(tree, blank) == str((tree / "project").resolve())


def test_paths_are_stripped_expanded_and_resolved(tree: Path) -> None:
    """Specification lemon_gateway 3.5: stripped, `~` expanded, absolute, links resolved."""
    source = str((tree / "project" / "src").resolve())
    assert resolve(tree, f"  {tree}/project/src ") == source
    assert resolve(tree, "~/project/src") == source
    assert resolve(tree, "src") == source
    assert resolve(tree, "in") == source


@pytest.mark.parametrize(
    "escape", ["~/elsewhere", "..", "out", "out/deeper", "/", "~/project2", "src\0"]
)
def test_what_leads_out_of_the_roots_is_refused(tree: Path, escape: str) -> None:
    """Specification lemon_gateway 3.5: outside the roots after resolving links."""
    with pytest.raises(WorkspaceEscape, match="outside the run's workspace"):
        resolve(tree, escape)


def test_a_context_whose_own_directory_became_a_link_out_is_refused(tree: Path) -> None:
    """DESIGN ruling 24: the run stays inside its roots after resolving links."""
    workspace = Workspace.at(str(tree / "project" / "src"), [str(tree / "project")])
    wanted = request("run_1", workspace=workspace)
    (tree / "project" / "src").rmdir()
    (tree / "project" / "src").symlink_to(tree / "elsewhere")
    with pytest.raises(WorkspaceEscape):
        working_directory(wanted, PathSettings(tree))


def test_the_workspace_of_chats_is_configured_or_the_agent_s(tmp_path: Path) -> None:
    """Specification lemon_gateway 10: relative paths anchor at the agent directory."""
    paths, agent_dir = PathSettings(tmp_path), tmp_path / ".lemon" / "agent"
    elsewhere = {"LEMON_AGENT_DIR": "/srv/agent"}

    def lost() -> str:
        raise OSError("no idea")

    assert workspace_dir(None, paths, {}) == agent_dir / "workspace"
    assert workspace_dir("  ", paths, elsewhere) == Path("/srv/agent/workspace")
    assert workspace_dir("files", paths, {}) == agent_dir / "files"
    assert workspace_dir("~/files", paths, elsewhere) == tmp_path / "files"
    assert workspace_dir(lambda: "/srv/files", paths, {}) == Path("/srv/files")
    assert workspace_dir(lambda: None, paths, {}) == agent_dir / "workspace"
    assert workspace_dir(lost, paths, {}) == agent_dir / "workspace"


def test_a_project_without_a_directory_is_told(tmp_path: Path) -> None:
    """Specification lemon_gateway 10: a root that is not a directory warns at load."""
    (tmp_path / "here").mkdir()
    projects = {"a": {"root": "~/here"}, "b": {"root": "~/gone"}}
    section = GatewaySection.model_validate({"projects": projects})
    assert missing_projects(section, PathSettings(tmp_path)) == (
        "gateway.projects.b.root: ~/gone is no directory",
    )
