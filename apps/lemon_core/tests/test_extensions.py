"""Extension manifests (specification lemon_core 15)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lemon_core.extensions import (
    MANIFEST_MAX_BYTES,
    MANIFEST_NAMES,
    AuditEntry,
    DistributionEntry,
    ExtensionManifest,
    HostEntry,
    ManifestInvalid,
    ProviderEntry,
    manifest_file,
    read_manifest,
)

SMALLEST: dict[str, object] = {"name": "notes", "version": "1.0.0", "schema_version": 1}


def written(folder: Path, raw: object, name: str = "lemon_extension.json") -> Path:
    path = folder / name
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return path


def problems(folder: Path, raw: object) -> list[str]:
    with pytest.raises(ManifestInvalid) as caught:
        read_manifest(written(folder, raw))
    return [problem.path for problem in caught.value.problems]


def test_a_whole_manifest_is_read(tmp_path: Path) -> None:
    raw = {
        **SMALLEST,
        "description": "Keeps notes.",
        "providers": [{"type": "memory", "name": "notes"}, {"type": "model"}],
        "host": {"type": "wasm", "entry": "notes.wasm"},
        "distribution": {"type": "git", "source": "https://example.org/notes"},
        "audit": {"status": "passed"},
        "homepage": "https://example.org",
    }
    assert read_manifest(written(tmp_path, raw)) == ExtensionManifest(
        name="notes",
        version="1.0.0",
        schema_version=1,
        description="Keeps notes.",
        providers=(ProviderEntry(type="memory", name="notes"), ProviderEntry(type="model")),
        host=HostEntry(type="wasm"),
        distribution=DistributionEntry(type="git", source="https://example.org/notes"),
        audit=AuditEntry(status="passed"),
    )
    assert read_manifest(written(tmp_path, SMALLEST)).providers == ()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": "Notes"}, "name"),
        ({"name": ".notes"}, "name"),
        ({"name": "notes\n"}, "name"),
        ({"name": ""}, "name"),
        ({"name": 3}, "name"),
        ({"version": ""}, "version"),
        ({"version": "  "}, "version"),
        ({"version": 1}, "version"),
        ({"schema_version": 2}, "schema_version"),
        ({"schema_version": "1"}, "schema_version"),
        ({"providers": {"type": "model"}}, "providers"),
        ({"providers": [{"type": "model"}, {"type": "chat"}]}, "providers.1.type"),
        ({"providers": [{}]}, "providers.0.type"),
        ({"host": {"type": "ruby"}}, "host.type"),
        ({"host": "python"}, "host"),
        ({"distribution": {"type": "ftp"}}, "distribution.type"),
        ({"audit": {"status": "fine"}}, "audit.status"),
        ({"description": 1}, "description"),
    ],
)
def test_each_field_has_its_rule(tmp_path: Path, change: dict[str, object], path: str) -> None:
    assert problems(tmp_path, {**SMALLEST, **change}) == [path]


def test_every_value_of_the_closed_sets_is_taken(tmp_path: Path) -> None:
    for kind in ("model", "memory", "tool_executor", "storage"):
        read_manifest(written(tmp_path, {**SMALLEST, "providers": [{"type": kind}]}))
    for kind in ("python", "wasm", "mcp", "external"):
        read_manifest(written(tmp_path, {**SMALLEST, "host": {"type": kind}}))
    for kind in ("local", "git", "github", "registry", "archive"):
        read_manifest(written(tmp_path, {**SMALLEST, "distribution": {"type": kind}}))
    for status in ("pending", "passed", "warn", "blocked", "unknown"):
        read_manifest(written(tmp_path, {**SMALLEST, "audit": {"status": status}}))


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    raw = {"name": "A", "host": {"type": "x"}, "providers": [{"type": "y"}]}
    assert problems(tmp_path, raw) == [
        "name",
        "version",
        "schema_version",
        "providers.0.type",
        "host.type",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"a": NaN}',
        '{"name": "a", "name": "b"}',
        "[" * 100_000,
        '"\\ud800',
    ],
)
def test_what_is_no_json_object_is_told(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text) == [""]


def test_the_size_is_limited(tmp_path: Path) -> None:
    text = json.dumps(SMALLEST)
    read_manifest(written(tmp_path, text + " " * (MANIFEST_MAX_BYTES - len(text))))
    with pytest.raises(ManifestInvalid, match="larger than 256 KiB"):
        read_manifest(written(tmp_path, text + " " * (MANIFEST_MAX_BYTES - len(text) + 1)))


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    real = written(tmp_path, SMALLEST)
    link, pipe, folder = tmp_path / "link", tmp_path / "pipe", tmp_path / "folder"
    link.symlink_to(real)
    os.mkfifo(pipe)
    folder.mkdir()
    for path, why in ((link, "is a link"), (pipe, "no regular"), (folder, "no regular")):
        with pytest.raises(ManifestInvalid, match=why):
            read_manifest(path)
    with pytest.raises(ManifestInvalid, match="cannot be read"):
        read_manifest(tmp_path / "missing")


def test_the_three_names_are_looked_for_in_order(tmp_path: Path) -> None:
    assert manifest_file(tmp_path) is None
    for name in reversed(MANIFEST_NAMES):
        path = written(tmp_path, SMALLEST, name)
        assert manifest_file(tmp_path) == path
    assert manifest_file(path) == path
    assert manifest_file(tmp_path / "missing") is None


def test_reading_runs_nothing_of_the_extension(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "notes.py").write_text("raise SystemExit('imported')")
    raw = {**SMALLEST, "host": {"type": "python"}, "entry": "notes:extension"}
    assert read_manifest(written(tmp_path, raw)).name == "notes"
