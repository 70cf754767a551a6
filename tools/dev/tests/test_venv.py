"""`.venv` outside Bazel."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.dev.venv import VenvError, copy_script, make


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "pkg/__pycache__").mkdir(parents=True)
    (folder / "pkg/__init__.py").write_text("NAME = 'pkg'\n")
    (folder / "pkg/__pycache__/__init__.cpython-311.pyc").write_bytes(b"stale")
    (folder / "bin").mkdir()
    (folder / "bin/tool").write_text("#!/elsewhere/python3\nimport pkg, own\nprint(own.WORD)\n")
    return folder


@pytest.fixture
def python() -> Path:
    return Path(sys.executable)


def test_packages_scripts_and_own_sources_work_in_the_environment(
    tmp_path: Path, site: Path, python: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "own.py").write_text("WORD = 'hello'\n")
    venv = tmp_path / "venv"

    make(venv, python, [site], [own])

    (package,) = venv.rglob("site-packages/pkg")
    assert [file.name for file in package.iterdir()] == ["__init__.py"]
    assert not (package.parent / "bin").exists()
    done = subprocess.run([venv / "bin/tool"], env={}, capture_output=True, text=True, check=True)
    assert done.stdout == "hello\n"


def test_an_environment_made_here_is_made_anew(tmp_path: Path, site: Path, python: Path) -> None:
    venv = tmp_path / "venv"
    make(venv, python, [site], [])
    left = venv / "left-over"
    left.touch()
    make(venv, python, [], [])
    assert not left.exists()


def test_somebody_elses_environment_stays(tmp_path: Path, python: Path) -> None:
    theirs = tmp_path / "venv"
    theirs.mkdir()
    with pytest.raises(VenvError, match="was not made by this command"):
        make(theirs, python, [], [])


def test_a_program_is_copied_as_it_is(tmp_path: Path) -> None:
    source, target = tmp_path / "ruff", tmp_path / "copy"
    source.write_bytes(b"\x7fELF\n\x00python")
    copy_script(source, target, Path("/venv/bin/python3"))
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o111
