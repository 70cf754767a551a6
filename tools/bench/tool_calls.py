"""`bazel run //tools/bench:tools`: what the agent's tools cost beside the bare programs.

`grep` and `find` beside `rg` over a tree of many small files, `read` beside opening the file, and
`bash` beside a bare subprocess. Each tool and its counterpart take turns, and a row is the ratio of
their middles, or the difference where one of them takes next to nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from coding_agent.jobs import Jobs
from coding_agent.kernels import Kernels
from coding_agent.todos import Todos
from coding_agent.tools.files import READ
from coding_agent.tools.find import FIND
from coding_agent.tools.ripgrep import Ripgrep
from coding_agent.tools.search import GREP
from coding_agent.tools.shell import bash_tool
from coding_agent.tools.toolset import RunIdentity, SharedTools, ShellSettings, ToolDef, ToolEnv
from coding_agent.web import Web
from coding_agent.workspace import PathGuard
from lemon_agent import AbortSignal, ToolCallContext
from lemon_core.bus import Bus
from lemon_core.checkpoint_folder import CheckpointFolder
from lemon_core.checkpoints import Checkpoints
from lemon_core.clock import SystemClock
from lemon_core.config.tools import Web as WebSettings
from lemon_core.execution_context import Workspace
from lemon_core.introspection import Introspection
from lemon_core.store import Store
from lemon_core.store.memory import MemoryBackend
from lemon_core.testing import scrubbed_environ, socket_dir
from lemon_core.tool_policy import ToolPolicy
from tools.bench.stats import percentile
from tools.bench.table import Row, at_most, machine_facts, show

FILES: Final = 50_000
FILES_PER_FOLDER: Final = 100
LINES: Final = 20
# One in so many files holds the word that is looked for.
RARE: Final = 1_000
CALLS_OF_QUICK_ONES: Final = 20

Action = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A tool and what it is measured against; `calls` of each make one turn."""

    name: str
    tool: Action
    bare: Action
    calls: int = 1


def make_tree(root: Path, files: int) -> None:
    """Small source files, with a word in a few of them and an ignore file."""
    text = "".join(f"value_{line} = compute({line})  # nothing to see\n" for line in range(LINES))
    for number in range(files):
        folder = root / f"package_{number // FILES_PER_FOLDER}"
        if number % FILES_PER_FOLDER == 0:
            folder.mkdir(parents=True)
        rare = "needle = True\n" if number % RARE == 0 else ""
        (folder / f"module_{number}.py").write_text(text + rare, encoding="utf-8")
    (root / ".gitignore").write_text("*.log\n", encoding="utf-8")


def tool_env(tree: Path, kept: Path) -> ToolEnv:
    """The surroundings of a run in `tree` that may do everything."""
    environ, clock = scrubbed_environ(kept), SystemClock()
    checkpoints = Checkpoints(
        CheckpointFolder(kept / "checkpoints"),
        clock,
        Bus(),
        Introspection(Store(MemoryBackend()), clock),
    )
    return ToolEnv(
        guard=PathGuard(tree, kept, Workspace.at(str(tree))),
        policy=ToolPolicy.full_access(),
        environ=environ,
        spill_dir=kept / "spill",
        shell=ShellSettings(),
        ripgrep=Ripgrep(environ),
        identity=RunIdentity("run_1", "session_1", "agent:default:main", "default"),
        shared=SharedTools(
            checkpoints=checkpoints,
            jobs=Jobs(clock.now_ms),
            kernels=Kernels(clock),
            todos=Todos(kept / "todos"),
            web=Web(WebSettings(), _no_secret, clock),
            now_ms=clock.now_ms,
            private_dir=kept,
        ),
    )


async def _no_secret(_: str) -> str | None:
    return None


def pairs(tree: Path, env: ToolEnv) -> tuple[Pair, ...]:
    """In the order in which they take turns."""
    rg = env.ripgrep.command()
    one_file = tree / "package_0" / "module_1.py"

    def tool(definition: ToolDef, **params: object) -> Action:
        async def action() -> object:
            call = ToolCallContext("call_1", params, AbortSignal(), lambda _: None)
            return await definition.execute(env, call)

        return action

    def program(*words: str) -> Action:
        async def action() -> object:
            return await anyio.run_process(words, cwd=tree, stderr=subprocess.DEVNULL)

        return action

    async def opened() -> object:
        return await anyio.to_thread.run_sync(one_file.read_text)

    name = str(one_file.relative_to(tree))
    return (
        Pair("grep", tool(GREP, pattern="needle"), program(*rg, "needle", ".")),
        Pair(
            "find",
            tool(FIND, pattern="module_7*.py"),
            program(*rg, "--files", "--glob", "module_7*.py", "."),
        ),
        Pair("read", tool(READ, path=name), opened, CALLS_OF_QUICK_ONES),
        Pair(
            "bash",
            tool(bash_tool(env.shell.timeout_ms), command="true"),
            program("bash", "-c", "true"),
            CALLS_OF_QUICK_ONES,
        ),
    )


async def measure(turns: int, files: int) -> Mapping[Pair, tuple[list[float], list[float]]]:
    """Seconds of each tool and of its counterpart; the first turn fills the caches."""
    found: dict[Pair, tuple[list[float], list[float]]] = {}
    with socket_dir() as root:
        tree, kept = root.resolve() / "tree", root.resolve() / "kept"
        kept.mkdir()
        await anyio.to_thread.run_sync(make_tree, tree, files)
        measured = pairs(tree, tool_env(tree, kept))
        for turn in range(turns + 1):
            for pair in measured:
                tool = await _timed(pair.tool, pair.calls)
                bare = await _timed(pair.bare, pair.calls)
                times = found.setdefault(pair, ([], []))
                if turn:
                    times[0].append(tool)
                    times[1].append(bare)
    return found


async def _timed(action: Action, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        await action()
    return (time.perf_counter() - began) / calls


def rows(found: Mapping[Pair, tuple[Sequence[float], Sequence[float]]]) -> list[Row]:
    """Milliseconds of both sides, and how they compare."""
    middles = {
        pair.name: (percentile(tool, 50) * 1000, percentile(bare, 50) * 1000)
        for pair, (tool, bare) in found.items()
    }
    bare_names = {"grep": "rg", "find": "rg --files", "read": "open and read", "bash": "bash -c"}
    listed = [
        row
        for name, (tool, bare) in middles.items()
        for row in (Row(name, tool, "ms"), Row(f"{bare_names[name]}, bare", bare, "ms"))
    ]
    ratios = [
        Row(f"{name}, times bare rg", middles[name][0] / middles[name][1], "", at_most(1.5))
        for name in ("grep", "find")
    ]
    beyond = {name: tool - bare for name, (tool, bare) in middles.items()}
    return [
        *listed,
        *ratios,
        Row("read, beyond opening the file", beyond["read"], "ms", at_most(1)),
        Row("bash, beyond a bare subprocess", beyond["bash"], "ms", at_most(5)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="tools", description="What the agent's tools cost.")
    parser.add_argument("--turns", type=int, default=10, help="of each tool")
    parser.add_argument("--files", type=int, default=FILES, help="in the tree")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    found = anyio.run(measure, max(1, arguments.turns), max(RARE, arguments.files))
    print(show(rows(found), machine_facts(began), as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
