"""Whether a project's code may be used (DESIGN ruling 40)."""

from __future__ import annotations

from pathlib import Path

import pytest

from coding_agent.project_trust import ProjectTrust
from lemon_core.config.trust import TrustedProjects
from lemon_core.paths import PathSettings


def test_the_answer_follows_the_list_the_configuration_and_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is worked out again only when one of them has changed."""
    paths, project = PathSettings(tmp_path / "home"), tmp_path / "project"
    code = project / ".lemon" / "extensions" / "a.py"
    code.parent.mkdir(parents=True)
    code.write_text("1")
    asked: list[Path] = []
    real = TrustedProjects.is_trusted

    def counted(self: TrustedProjects, directory: Path) -> bool:
        asked.append(directory)
        return real(self, directory)

    monkeypatch.setattr(TrustedProjects, "is_trusted", counted)
    trust, projects = ProjectTrust(paths), TrustedProjects(paths)
    assert not trust(project)
    assert asked == []
    projects.trust(project)
    assert [trust(project), trust(project), len(asked)] == [True, True, 1]
    code.write_text("2")
    assert [trust(project), trust(project), len(asked)] == [False, False, 2]
    projects.trust(project)
    assert trust(project)
    (project / ".lemon" / "config.toml").write_text("[gateway]\n")
    assert not trust(project)
    projects.trust(project)
    assert trust(project)
    projects.revoke(project)
    assert not trust(project)
