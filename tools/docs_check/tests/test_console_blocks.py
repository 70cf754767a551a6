"""The repository's own documents: what they show in a terminal is what happens.

`lemon` on PATH is the built launcher; home and working directory are empty, one of each for every
document.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tools.docs_check import plain_curl
from tools.docs_check.blocks import steps
from tools.docs_check.check import Place, check

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
LEMON = Path("tools/release/lemon").absolute()
# It begins with nothing but the package: //tools/release:tests/test_quickstart follows it.
ELSEWHERE = "quickstart.md"


def documents() -> list[str]:
    """README.md and every document of docs/ that has a console block."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        str(path.relative_to(ROOT))
        for path in paths
        if path.name != ELSEWHERE
        if path.name == "README.md" or "```console" in path.read_text(encoding="utf-8")
    ]


@contextmanager
def new_user() -> Iterator[Place]:
    """Somebody who has only `lemon`."""
    # Short, for the sockets in it: the test runner's own temporary folder is too long.
    with TemporaryDirectory(prefix="lm", dir="/tmp", ignore_cleanup_errors=True) as place:
        home, work, scratch, programs = (
            Path(place) / name for name in ("home", "work", "scratch", "bin")
        )
        for folder in (home, work, scratch, programs):
            folder.mkdir()
        # Not a link: the launcher finds its files beside itself.
        lemon = programs / "lemon"
        lemon.write_text(f'#!/bin/sh\nexec {shlex.quote(str(LEMON))} "$@"\n', encoding="utf-8")
        lemon.chmod(0o755)
        if shutil.which("curl") is None:
            curl = programs / "curl"
            command = f"{shlex.quote(sys.executable)} {shlex.quote(plain_curl.__file__)}"
            curl.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
            curl.chmod(0o755)
        environ = {
            "HOME": str(home),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
            # Another server of this machine may hold the usual port.
            "LEMON_GATEWAY_HEALTH_PORT": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            **{name: text for name, text in os.environ.items() if name.startswith("RUNFILES")},
        }
        yield Place(ROOT, work, scratch, environ)


@pytest.mark.parametrize("document", documents())
async def test_it_shows_what_happens(document: str) -> None:
    typed = steps((ROOT / document).read_text(encoding="utf-8"))
    with new_user() as place:
        found = await check(typed, place)
    assert not found, "\n".join(f"{document}, {problem}" for problem in found)
