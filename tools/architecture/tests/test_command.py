"""The checks as build actions: what each command reads and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.architecture import command

TABLE = """\
| App | Actual | Allowed | Reference-only |
|---|---|---|---|
| lemon_base | (none) | (none) | (none) |
| lemon_top | lemon_base | lemon_base | (none) |
"""
POLICY = """\
ALLOWED = {"lemon_base": [], "lemon_top": ["lemon_base"]}
FINAL = {"lemon_base": [], "lemon_top": ["lemon_base"]}
REFERENCE_ONLY = {}
FINAL_REFERENCE_ONLY = {}
"""
FILES = {
    "tools/architecture/policy.bzl": POLICY,
    "apps/lemon_base/BUILD.bazel": 'lemon_app(name = "lemon_base")',
    "apps/lemon_top/BUILD.bazel": 'lemon_app(name = "lemon_top", deps = ["//apps/lemon_base"])',
    "apps/lemon_top/use.py": "import lemon_base\n",
    "docs/architecture_boundaries.md": (
        "<!-- architecture_policy:start -->\n<!-- architecture_policy:end -->\n"
    ),
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An action's working directory: a tree of symlinks, as a sandbox makes it."""
    for name, text in FILES.items():
        real, link = tmp_path / "real" / name, tmp_path / "sandbox" / name
        real.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text, "utf-8")
        link.symlink_to(real)
    monkeypatch.chdir(tmp_path / "sandbox")
    return tmp_path


def _edges(app: str, deps: list[str]) -> str:
    path = Path(f"{app}.edges.json")
    path.write_text(json.dumps({"app": app, "deps": deps, "test_deps": []}), "utf-8")
    return str(path)


def test_imports_writes_what_is_wrong_with_one_app() -> None:
    Path("apps/lemon_base/up.py").write_text("import lemon_top\n", "utf-8")
    assert command.main(["imports", "lemon_top", "top.txt"]) == 0
    assert command.main(["imports", "lemon_base", "base.txt"]) == 0
    assert Path("top.txt").read_text("utf-8") == ""
    assert (
        Path("base.txt")
        .read_text("utf-8")
        .startswith("apps/lemon_base/up.py:1: forbidden_namespace_reference: imports lemon_top")
    )


def test_edges_compares_the_build_with_the_parser() -> None:
    right = _edges("lemon_top", ["//apps/lemon_base"])
    assert command.main(["edges", "right.txt", right]) == 0
    assert Path("right.txt").read_text("utf-8") == ""
    wrong = _edges("lemon_base", ["//apps/lemon_top"])
    assert command.main(["edges", "wrong.txt", right, wrong]) == 0
    assert Path("wrong.txt").read_text("utf-8") == (
        "apps/lemon_base/BUILD.bazel: edges_mismatch: only the build has //apps/lemon_top in deps\n"
    )


def test_the_table_is_rendered_compared_and_written(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [_edges("lemon_base", []), _edges("lemon_top", ["//apps/lemon_base"])]
    assert command.main(["render", "table.md", *files]) == 0
    assert Path("table.md").read_text("utf-8") == TABLE

    assert command.main(["fresh", "stale.txt", "table.md"]) == 0
    assert "stale_architecture_doc" in Path("stale.txt").read_text("utf-8")

    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(place / "real"))
    assert command.main(["update", "table.md"]) == 0
    assert TABLE in (place / "real/docs/architecture_boundaries.md").read_text("utf-8")
    assert command.main(["fresh", "fresh.txt", "table.md"]) == 0
    assert Path("fresh.txt").read_text("utf-8") == ""


def test_any_other_call_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["imports"]) == 2
    assert "command.py imports APP REPORT" in capsys.readouterr().err
