"""`find`: files and folders by name, under ripgrep's ignore rules."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Literal

import anyio.to_thread

from coding_agent.tools.output import Head, SpillFile
from coding_agent.tools.process import run_process
from coding_agent.tools.search import ORDERS
from coding_agent.tools.search_place import search_place
from coding_agent.tools.toolset import ToolDef, ToolEnv, bool_param, int_param, schema, text_param
from coding_agent.workspace import printable
from lemon_agent import AgentToolResult, ToolCallContext, ToolError

MAX_RESULTS: Final = 100
MAX_KEPT: Final = 20_000
MAX_PATTERN_CHARS: Final = 1_000
TIMEOUT_MS: Final = 30_000

Kind = Literal["file", "directory", "all"]


async def _find(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    params = call.params
    path = env.guard.resolve(params.get("path") or ".")
    wanted = name_pattern(params["pattern"])
    command = await anyio.to_thread.run_sync(env.ripgrep.command)
    kind: Kind = params.get("type") or "all"
    max_depth = params.get("max_depth")
    flags = ["--files", "--null", "--no-config"]
    if params.get("hidden"):
        flags += ["--hidden", "--glob=!.git"]
    if max_depth and kind == "file":
        flags.append(f"--max-depth={max_depth}")
    with search_place(path, env.guard.shown(path)) as place:
        if place.stdin is not None:
            raise ToolError(f"{env.guard.shown(path)} is a file: name a folder")
        for order in ORDERS:
            names = Names(wanted, kind, max_depth)
            ending = await run_process(
                [*command, *order, *flags],
                cwd=place.cwd,
                environ=env.environ,
                timeout_ms=TIMEOUT_MS,
                stdout=names.take,
                stderr=Head(0).take,
            )
            if ending.timed_out or names.count <= MAX_KEPT:
                break
    limit = params.get("max_results") or MAX_RESULTS
    start = env.guard.shown(path)
    found = sorted(name if start == "." else f"{start}/{name}" for name in names.found)
    return await _answer(env, found, names.count, limit, timed_out=ending.timed_out)


FIND: Final = ToolDef(
    name="find",
    description=(
        "Find files and folders by name. Those that git ignores and hidden ones are skipped, "
        "and so are folders without files."
    ),
    parameters=schema(
        ("pattern",),
        pattern=text_param("*.py for names, src/**/*.ts for paths below path, or part of a name."),
        path=text_param("Folder; the working directory when left out."),
        type={"type": "string", "enum": ["file", "directory", "all"]},
        max_depth=int_param("How deep to go; 1 stays in the folder.", minimum=1),
        max_results=int_param("How many to show; 100 when left out.", minimum=1),
        hidden=bool_param("Hidden ones too."),
    ),
    execute=_find,
)


@dataclass(slots=True)
class Names:
    """Takes ripgrep's list of files and keeps what fits, folders included."""

    wanted: re.Pattern[str]
    kind: Kind
    max_depth: int | None = None
    found: list[str] = field(default_factory=list)
    count: int = 0
    _rest: bytes = b""
    _folder: str = ""
    _seen: set[str] = field(default_factory=set)

    async def take(self, chunk: bytes) -> None:
        """Add output: names that end in a null character."""
        *names, self._rest = (self._rest + chunk).split(b"\0")
        for name in names:
            self._add(printable(os.fsdecode(name)).removeprefix("./"))

    def _add(self, name: str) -> None:
        folder = name.rpartition("/")[0]
        # Those of one folder mostly follow each other.
        if self.kind != "file" and folder != self._folder:
            self._folder = folder
            for parent in PurePosixPath(name).parents:
                text = str(parent)
                if text == "." or text in self._seen:
                    break
                self._seen.add(text)
                self._keep(text, "/")
        if self.kind != "directory":
            self._keep(name, "")

    def _keep(self, name: str, mark: str) -> None:
        # ripgrep lists files: a folder is known by those that lie deeper than itself.
        if self.max_depth is not None and name.count("/") >= self.max_depth:
            return
        if self.wanted.fullmatch(name):
            self.count += 1
            if len(self.found) < MAX_KEPT:
                self.found.append(name + mark)


def name_pattern(pattern: str) -> re.Pattern[str]:
    """What a path has to fit: a pattern with a slash the whole path, another one the name.

    `*` and `?` stay within a name, `**` goes through folders. Without any of them the pattern is
    part of a name, in upper or lower case. Raises `ToolError`.
    """
    text = pattern.strip().removeprefix("./")
    if not text or "\0" in text or len(text) > MAX_PATTERN_CHARS:
        raise ToolError(f"pattern needs 1 to {MAX_PATTERN_CHARS} characters")
    if not re.search(r"[*?\[{]", text):
        if "/" in text:
            return re.compile(rf"(?:.*/)?{re.escape(text.rstrip('/'))}", re.DOTALL)
        return re.compile(rf"(?:.*/)?[^/]*{re.escape(text)}[^/]*", re.DOTALL | re.IGNORECASE)
    prefix = "" if "/" in text else "(?:.*/)?"
    try:
        return re.compile(prefix + _regex_of(text.removeprefix("/")), re.DOTALL)
    except re.error as exc:
        raise ToolError(f"pattern {text!r} cannot be read: {exc}") from exc


def _regex_of(glob: str) -> str:
    parts: list[str] = []
    depth = 0
    tokens = re.finditer(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|[{},]|.", glob, re.DOTALL)
    for match in tokens:
        token = match[0]
        depth += (token == "{") - (token == "}" and depth > 0)
        parts.append(_piece(token, depth))
    return "".join(parts)


def _piece(token: str, depth: int) -> str:
    simple = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")"}
    if token in simple:
        return simple[token]
    if token == "," and depth:
        return "|"
    if token.startswith("[") and len(token) > 2:
        inner = token[1:-1].replace("\\", "\\\\")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(token)


async def _answer(
    env: ToolEnv, found: list[str], count: int, limit: int, *, timed_out: bool
) -> AgentToolResult:
    more = " or more" if timed_out else ""
    lines = [f"Found {count}{more} match{'' if count == 1 else 'es'}.", *found[:limit]]
    saved = None
    if count > limit:
        spill = SpillFile(env.spill_dir / "find", "txt")
        await spill.write("".join(f"{name}\n" for name in found).encode())
        saved = await spill.save()
        where = "" if saved is None else f" All of them: {saved}"
        lines.append(f"[Showing the first {limit}. Use max_results for more.{where}]")
    if timed_out:
        lines.append(f"[Stopped after {TIMEOUT_MS} ms. Narrow the search.]")
    details = {
        "matches": count,
        "timed_out": timed_out,
        "full_output_path": None if saved is None else str(saved),
    }
    return AgentToolResult.of_text("\n".join(lines), details=details)
