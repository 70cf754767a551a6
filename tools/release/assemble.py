"""Puts a release where a web server can offer it.

`bazel run //tools/release:assemble -- FOLDER [--base-url URL]` writes

    FOLDER/install.sh
    FOLDER/<channel>/<version>/manifest.json, and the archives beside it
    FOLDER/<channel>/latest/    the same files once more, as links
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

HERE: Final = Path(__file__).parent
# What people may ask for, and the archive that serves it: the same one until they differ.
PROFILES: Final = {"runtime_min": "runtime_min", "runtime_full": "runtime_min"}
_NO_BASE_URL: Final = "default_base_url=''"


def manifest(facts: Sequence[Mapping[str, Any]], commit: str, built_at: str) -> dict[str, Any]:
    """What consumers read of a release (specification lemon_cli 7); raises ValueError.

    `facts` are those of its archives, which must be of one version and channel.
    """
    by_profile = {one["profile"]: one for one in facts}
    kinds = {(one["version"], one["channel"], one["python"]) for one in facts}
    if len(kinds) != 1:
        raise ValueError(f"these archives are not of one release: {sorted(kinds)}")
    version, channel, python = kinds.pop()
    return {
        "schema": 2,
        "version": version,
        "channel": channel,
        "commit": commit,
        "built_at": built_at,
        "python": python,
        "artifacts": [
            {**by_profile[archive]["artifact"], "profile": profile}
            for profile, archive in PROFILES.items()
            if archive in by_profile
        ],
    }


def installer(text: str, base_url: str | None) -> str:
    """The installer, with the address that it uses unless it is told another; raises ValueError."""
    if base_url is None:
        return text
    if text.count(_NO_BASE_URL) != 1:
        raise ValueError(f"install.sh has no line {_NO_BASE_URL}")
    if urlsplit(base_url).scheme not in ("http", "https") or "'" in base_url:
        raise ValueError(f"{base_url} is no address of a web server")
    return text.replace(_NO_BASE_URL, f"default_base_url='{base_url}'")


def assemble(
    folder: Path, archives: Sequence[Path], document: Mapping[str, Any], script: str
) -> Path:
    """Write all of it; returns where the manifest is. What is there of the release is replaced."""
    place = folder / str(document["channel"]) / str(document["version"])
    latest = place.with_name("latest")
    for target in (place, latest):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
    for archive in archives:
        shutil.copyfile(archive, place / archive.name)
        os.link(place / archive.name, latest / archive.name)
    text = json.dumps(document, indent=2) + "\n"
    for target in (place, latest):
        (target / "manifest.json").write_text(text, encoding="utf-8")
    (folder / "install.sh").write_text(script, encoding="utf-8")
    return place / "manifest.json"


def _commit(root: str) -> str:
    """The commit that was built; empty without git."""
    try:
        done = subprocess.run(
            ["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def main(argv: Sequence[str] | None = None) -> None:
    """Assemble the archives of this build."""
    parser = argparse.ArgumentParser(prog="assemble", description="Lay a release out for a server.")
    parser.add_argument("folder", type=Path, help="where; a relative path is the caller's")
    parser.add_argument("--base-url", help="the address that install.sh uses by itself")
    options = parser.parse_args(argv)
    facts = [json.loads(path.read_text()) for path in sorted(HERE.glob("*.facts.json"))]
    archives = [HERE / one["artifact"]["file"] for one in facts]
    built_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    commit = facts[0]["commit"] or _commit(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
    script = (HERE / "install.sh").read_text(encoding="utf-8")
    folder = Path(os.environ.get("BUILD_WORKING_DIRECTORY", ".")) / options.folder
    document = manifest(facts, commit, built_at)
    print(assemble(folder, archives, document, installer(script, options.base_url)))


if __name__ == "__main__":
    main()
