"""docs/quickstart.md, followed word for word in an empty home."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tools.docs_check.blocks import steps
from tools.docs_check.check import Place, check
from tools.release.assemble import assemble, manifest
from tools.release.tests.installing import INSTALLER, new_machine

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
BUILT = Path("tools/release").absolute()
# The embedded model on a busy machine takes its time; this only ends what hangs.
LIMIT_S = 120.0


async def test_it_shows_what_happens() -> None:
    typed = steps((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8"))
    with new_machine() as machine:
        # What its first line does, which a test cannot: Bazel inside Bazel.
        facts = [json.loads((BUILT / "lemon_runtime_min.facts.json").read_text())]
        document = manifest(facts, "", "2026-11-30T00:00:00Z")
        archive = BUILT / str(facts[0]["artifact"]["file"])
        assemble(machine.home / "releases", [archive], document, INSTALLER.read_text())
        scratch = machine.root / "scratch"
        scratch.mkdir()
        environ = {
            "HOME": str(machine.home),
            "PATH": f"{machine.programs}{os.pathsep}{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
            # Another server of this machine may hold the usual ports.
            "LEMON_GATEWAY_HEALTH_PORT": "0",
            "LEMON_ROUTER_HEALTH_PORT": "0",
        }
        found = await check(typed, Place(ROOT, machine.home, scratch, environ), limit_s=LIMIT_S)
        left = sorted(path.name for path in machine.home.iterdir())
    assert not found, "\n".join(f"docs/quickstart.md, {problem}" for problem in found)
    assert left == [".lemon", "lemon", "releases"]
