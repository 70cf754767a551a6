"""What a server of releases offers (specification lemon_cli 7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lemon_core.update_manifest import Machine, choose_artifact, parse_manifest
from tools.release.assemble import assemble, installer, manifest

FILE = "lemon-2026.11.0-stable-linux-x86_64-runtime_min.tar.gz"
FACTS: dict[str, Any] = {
    "version": "2026.11.0",
    "channel": "stable",
    "platform": "linux-x86_64",
    "profile": "runtime_min",
    "python": "3.11",
    "commit": None,
    "artifact": {
        "file": FILE,
        "profile": "runtime_min",
        "platform": "linux-x86_64",
        "os": "linux",
        "arch": "x86_64",
        "sha256": "0" * 64,
        "size": 3,
        "glibc_min": "2.34",
    },
}


def test_the_manifest_is_what_an_update_reads() -> None:
    document = manifest([FACTS], "abc", "2026-11-30T00:00:00Z")
    assert {key: document[key] for key in document if key != "artifacts"} == {
        "schema": 2,
        "version": "2026.11.0",
        "channel": "stable",
        "commit": "abc",
        "built_at": "2026-11-30T00:00:00Z",
        "python": "3.11",
    }
    read = parse_manifest(json.dumps(document).encode(), "test")
    for profile in ("runtime_min", "runtime_full", "full", "min"):
        assert choose_artifact(read, Machine("linux-x86_64", profile, (2, 36))).file == FILE


def test_archives_of_two_releases_are_no_release() -> None:
    with pytest.raises(ValueError, match="not of one release"):
        manifest([FACTS, {**FACTS, "version": "2026.12.0"}], "", "")


def test_files_lie_where_the_installer_asks_for_them(tmp_path: Path) -> None:
    archive = tmp_path / FILE
    archive.write_bytes(b"tar")
    document = manifest([FACTS], "", "")
    out = tmp_path / "out"
    for _ in range(2):
        assemble(out, [archive], document, "#!/bin/sh\n")
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "install.sh",
        f"stable/2026.11.0/{FILE}",
        "stable/2026.11.0/manifest.json",
        f"stable/latest/{FILE}",
        "stable/latest/manifest.json",
    ]


def test_the_installer_gets_its_address() -> None:
    text = "a\ndefault_base_url=''\nb\n"
    assert installer(text, None) == text
    assert installer(text, "https://host/x") == "a\ndefault_base_url='https://host/x'\nb\n"
    with pytest.raises(ValueError, match="no address"):
        installer(text, "https://host/'; rm -rf ~; '")
    with pytest.raises(ValueError, match="no line"):
        installer("", "https://host")
