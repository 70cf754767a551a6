"""A coding agent's daily work through router and gateway: a scripted model mends a failing test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import pytest

from tools.e2e.tests.stack import model_server, scripted, user

pytestmark = pytest.mark.anyio

SOURCE = """\
def mean(values):
    return sum(values) / (len(values) - 1)
"""
TEST = """\
import unittest

from stats.average import mean


class MeanTest(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(mean([1, 2, 3]), 2)
"""
RUN_TESTS = {"name": "bash", "arguments": {"command": "python3 -m unittest"}}
STEPS = (
    RUN_TESTS,
    {"name": "grep", "arguments": {"pattern": "def mean"}},
    {"name": "read", "arguments": {"path": "stats/average.py"}},
    {
        "name": "edit",
        "arguments": {
            "path": "stats/average.py",
            "old_text": "(len(values) - 1)",
            "new_text": "len(values)",
        },
    },
    RUN_TESTS,
)


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=e2e", "-c", "user.email=e2e@localhost")
    command = ["git", *names, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def make_repository(folder: Path) -> None:
    (folder / "stats").mkdir()
    (folder / "stats" / "__init__.py").touch()
    (folder / "stats" / "average.py").write_text(SOURCE, encoding="utf-8")
    (folder / "test_average.py").write_text(TEST, encoding="utf-8")
    (folder / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "A mean that is wrong")


async def shown_results(base_url: str) -> list[str]:
    """What the model was shown of its tools' results, in order."""
    url = base_url.removesuffix("/v1") + "/control/requests"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        last = (await answer.json())[-1]["body"]["messages"]
    return [str(message["content"]) for message in last if message["role"] == "tool"]


async def test_a_failing_test_is_found_mended_and_run_again() -> None:
    script = {"turns": [*({"tool_calls": [step]} for step in STEPS), {"text": "Mended."}]}
    async with user() as home, model_server(script, home.paths.home) as base_url:
        await anyio.to_thread.run_sync(make_repository, home.work)
        me = scripted(home, base_url)
        async with me.server():
            ended = await me.lemon("run", "The test fails. Mend it.")
            assert (ended.code, ended.out) == (0, "Mended.")
            failed, found, read, edited, passed = await shown_results(base_url)
        assert "FAILED (failures=1)" in failed
        assert "stats/average.py:1: def mean(values):" in found
        assert "return sum(values) / (len(values) - 1)" in read
        assert "stats/average.py" in edited
        assert passed.rstrip().endswith("OK")
        changed = await anyio.to_thread.run_sync(git, home.work, "diff", "--unified=0")
        lines = [line for line in changed.splitlines() if line[:1] in "+-" and line[1:2] == " "]
        assert lines == [
            "-    return sum(values) / (len(values) - 1)",
            "+    return sum(values) / len(values)",
        ]
        assert await anyio.to_thread.run_sync(git, home.work, "status", "--short") == (
            " M stats/average.py\n"
        )
