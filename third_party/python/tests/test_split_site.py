"""One installed folder becomes one Bazel package per distribution."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from third_party.python.split_site import bazel_name, place_in_target, split


@pytest.mark.parametrize(
    ("distribution", "name"),
    [("grpcio-tools", "grpcio_tools"), ("PyYAML", "pyyaml"), ("zope.interface", "zope_interface")],
)
def test_names_are_lower_case_words_joined_by_underscores(distribution: str, name: str) -> None:
    assert bazel_name(distribution) == name


@pytest.mark.parametrize(
    ("recorded", "place"),
    [
        ("ruff/__init__.py", "ruff/__init__.py"),
        ("../../bin/ruff", "bin/ruff"),
        ("../../share/man/x.1", "share/man/x.1"),
        ("/etc/passwd", None),
        ("..", None),
    ],
)
def test_scripts_are_found_where_pip_moved_them(recorded: str, place: str | None) -> None:
    assert place_in_target(recorded) == place


def install(site: Path, name: str, files: dict[str, str], record: Iterable[str] = ()) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\nRequires-Dist: other\n")
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    lines = [*(record or files), f"{info.name}/METADATA", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{line},,\n" for line in lines))


def test_each_distribution_gets_its_files_and_its_dependencies(tmp_path: Path) -> None:
    site, target = tmp_path / "site", tmp_path / "out"
    install(site, "My-Tool", {"shared/a.py": "A = 1\n", "bin/tool": "#!x\n"},
            ["shared/a.py", "../../bin/tool"])  # fmt: skip
    install(site, "other", {"shared/b.py": "B = 1\n"})

    names = split(site, target, lambda requirements: set(requirements) | {"not_locked"})

    assert names == ["my_tool", "other"]
    assert (target / "my_tool/site/shared/a.py").is_file()
    assert (target / "my_tool/site/bin/tool").is_file()
    assert not (target / "my_tool/site/shared/b.py").exists()
    assert (target / "other/site/shared/b.py").is_file()
    assert 'deps = ["//other"]' in (target / "my_tool/BUILD.bazel").read_text()
    # It names itself as a requirement, which Bazel would call a cycle.
    assert "deps = []" in (target / "other/BUILD.bazel").read_text()
    assert not site.exists()


def test_bytecode_does_not_depend_on_where_it_was_made(tmp_path: Path) -> None:
    compiled = []
    for place in ("one", "another"):
        install(tmp_path / place / "site", "other", {"b.py": "def f() -> int:\n    return 1\n"})
        split(tmp_path / place / "site", tmp_path / place / "out", lambda _: set())
        (file,) = (tmp_path / place / "out/other/site/__pycache__").iterdir()
        compiled.append(file.read_bytes())
    assert compiled[0] == compiled[1]
