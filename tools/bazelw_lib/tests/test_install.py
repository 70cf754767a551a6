"""`tools/bazelw install`."""

import subprocess
from pathlib import Path

import pytest

from tools.bazelw_lib.install import install
from tools.bazelw_lib.report import BazelwError


def test_the_wrapper_runs_the_bazelw_of_the_workspace_around_it(tmp_path: Path) -> None:
    wrapper = install({"HOME": str(tmp_path), "PATH": ""})
    entry = tmp_path / "clone with space/tools/bazelw"
    entry.parent.mkdir(parents=True)
    entry.write_text('#!/bin/sh\necho "$# $1"\n')
    entry.chmod(0o755)
    below = entry.parent.parent / "apps/deep"
    below.mkdir(parents=True)

    done = subprocess.run(
        [wrapper, "a b"], cwd=below, env={}, capture_output=True, text=True, check=True
    )

    assert done.stdout == "1 a b\n"


def test_outside_a_workspace_the_wrapper_says_so(tmp_path: Path) -> None:
    wrapper = install({"HOME": str(tmp_path), "PATH": ""})
    done = subprocess.run([wrapper], cwd="/", env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "not inside a workspace" in done.stderr


def test_installing_again_is_harmless(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": ""}
    assert install(environ) == install(environ)
    assert [file.name for file in (tmp_path / ".local/bin").iterdir()] == ["bazel"]


def test_it_says_when_the_folder_is_not_on_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ".local/bin"
    install({"HOME": str(tmp_path), "PATH": "/usr/bin"})
    assert f'export PATH="{folder}:$PATH"' in capsys.readouterr().err
    install({"HOME": str(tmp_path), "PATH": f"/usr/bin:{folder}"})
    assert "export PATH" not in capsys.readouterr().err


def test_a_bazel_of_somebody_else_stays(tmp_path: Path) -> None:
    other = tmp_path / ".local/bin/bazel"
    other.parent.mkdir(parents=True)
    other.write_text("theirs")
    with pytest.raises(BazelwError, match="not ours"):
        install({"HOME": str(tmp_path), "PATH": ""})
    assert other.read_text() == "theirs"
