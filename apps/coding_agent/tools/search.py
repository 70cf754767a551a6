"""`grep`: ripgrep with its ignore rules, bounded in time and output."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import orjson

from coding_agent.tools.output import Head, SpillFile
from coding_agent.tools.process import run_process
from coding_agent.tools.search_place import search_place
from coding_agent.tools.toolset import ToolDef, ToolEnv, bool_param, int_param, schema, text_param
from lemon_agent import AgentToolResult, ToolCallContext, ToolError

MAX_PATTERN_BYTES: Final = 10_000
MAX_RESULTS: Final = 100
MAX_LINE_CHARS: Final = 500
MAX_BYTES: Final = 50 * 1_024
MAX_RAW_BYTES: Final = 8 * 1_024 * 1_024
MAX_ERROR_BYTES: Final = 4_096
TIMEOUT_MS: Final = 30_000
ORDERS: Final = ((), ("--sort=path",))
"""The same search gives the same answer: what fits is sorted here, because ripgrep sorts with one
thread only. What does not fit is searched again in order."""

ShownPath = Callable[[str], str]


async def _grep(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    params = call.params
    pattern = params["pattern"]
    if not pattern or "\0" in pattern or len(pattern.encode()) > MAX_PATTERN_BYTES:
        raise ToolError(f"pattern needs 1 to {MAX_PATTERN_BYTES} bytes, without null characters")
    path = env.guard.resolve(params.get("path") or ".")
    command = await anyio.to_thread.run_sync(env.ripgrep.command)
    with search_place(path, env.guard.shown(path)) as place:
        for order in ORDERS:
            output, errors = Head(MAX_RAW_BYTES), Head(MAX_ERROR_BYTES)
            ending = await run_process(
                [*command, *order, *_flags(params), f"--regexp={pattern}", "--", place.argument],
                cwd=place.cwd,
                environ=env.environ,
                timeout_ms=TIMEOUT_MS,
                stdout=output.take,
                stderr=errors.take,
                stdin=place.stdin,
            )
            if ending.timed_out or len(output.data) < MAX_RAW_BYTES:
                break
    matches = await anyio.to_thread.run_sync(
        parse_matches,
        output.data,
        lambda name: env.guard.shown(place.real(name)),
        params.get("max_results") or MAX_RESULTS,
    )
    # With matches, code 2 only says that some file could not be read.
    problem = _problem(bytes(errors.data))
    if ending.exit_code not in (0, 1, None) and not matches.found and problem is not None:
        raise ToolError(problem)
    matches.stopped = ending.timed_out
    answer = _answer(matches, await _saved(env, matches))
    return replace(answer, trust=env.guard.trust(path))


GREP: Final = ToolDef(
    name="grep",
    description=(
        "Search file contents with a regular expression. Files that git ignores, hidden files and "
        "binary files are skipped."
    ),
    parameters=schema(
        ("pattern",),
        pattern=text_param("Regular expression (Rust syntax)."),
        path=text_param("File or folder; the working directory when left out."),
        glob=text_param("Only files whose path fits, such as *.py or !tests/**."),
        case_sensitive=bool_param("Heed upper and lower case; true when left out."),
        literal=bool_param("Take the pattern as plain text."),
        context_lines=int_param("Lines to show around each match.", minimum=0),
        max_results=int_param("How many matches to show; 100 when left out.", minimum=1),
    ),
    execute=_grep,
)


@dataclass(slots=True)
class Matches:
    """Shown lines, how many matches there are, and what was cut."""

    limit: int
    lines: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    size: int = 0
    found: int = 0
    lines_cut: bool = False
    output_cut: bool = False
    count_cut: bool = False
    stopped: bool = False

    def add(self, line: str) -> None:
        """Show a line, unless the limits are reached; then it is one of the rest."""
        if self.found > self.limit:
            self.rest.append(line)
            return
        self.size += len(line.encode()) + 1
        self.output_cut = self.output_cut or self.size > MAX_BYTES
        (self.rest if self.output_cut else self.lines).append(line)


def parse_matches(output: bytes | bytearray, shown: ShownPath, limit: int) -> Matches:
    """Readable lines from ripgrep's JSON messages, sorted by path; a last line that was cut off is
    passed over."""
    matches = Matches(limit, count_cut=len(output) >= MAX_RAW_BYTES)
    # What belongs to one file comes in its order, and stays in it.
    for message in sorted(_messages(output), key=_path_of):
        matches.found += message["type"] == "match"
        mark = ":" if message["type"] == "match" else "-"
        matches.add(_line(message["data"], shown, matches, mark))
    return matches


def _messages(output: bytes | bytearray) -> Iterator[dict[str, Any]]:
    for raw in output.split(b"\n"):
        try:
            message = orjson.loads(raw)
        except orjson.JSONDecodeError:
            continue
        if message.get("type") in ("match", "context"):
            yield message


def _path_of(message: Mapping[str, Any]) -> list[bytes]:
    """By folders, as ripgrep's own sorting has it: `a/b` before `a-b`."""
    return _bytes(message["data"]["path"]).split(b"/")


def _flags(params: Mapping[str, Any]) -> list[str]:
    flags = ["--json", "--no-config"]
    if params.get("case_sensitive") is False:
        flags.append("--ignore-case")
    if params.get("literal"):
        flags.append("--fixed-strings")
    if params.get("glob"):
        flags.append(f"--glob={params['glob']}")
    if params.get("context_lines"):
        flags.append(f"--context={params['context_lines']}")
    return flags


def _line(data: Mapping[str, Any], shown: ShownPath, matches: Matches, mark: str) -> str:
    path = shown(_text(data["path"]))
    text = _text(data["lines"]).rstrip("\r\n")
    if len(text) > MAX_LINE_CHARS:
        matches.lines_cut = True
        text = text[:MAX_LINE_CHARS] + "…"
    return f"{path}{mark}{data['line_number']}{mark} {text}"


def _text(value: Mapping[str, str]) -> str:
    return value["text"] if "text" in value else _bytes(value).decode(errors="replace")


def _bytes(value: Mapping[str, str]) -> bytes:
    """ripgrep gives what is not UTF-8 as base64."""
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])


def _problem(errors: bytes) -> str | None:
    """What went wrong; None when it is only that a line of an ignore file means nothing."""
    lines = errors.decode(errors="replace").strip().splitlines()
    told = [line for line in lines if "error parsing glob" not in line]
    if lines and not told:
        return None
    text = "\n".join(told) or "ripgrep failed"
    if "regex parse error" in text:
        text += "\nUse literal=true to search for the text as it is."
    return text


async def _saved(env: ToolEnv, matches: Matches) -> Path | None:
    """The file with all lines, when not all are shown."""
    if not matches.rest:
        return None
    spill = SpillFile(env.spill_dir / "grep", "txt")
    await spill.write("".join(f"{line}\n" for line in [*matches.lines, *matches.rest]).encode())
    return await spill.save()


def _answer(matches: Matches, saved: Path | None) -> AgentToolResult:
    noun = "match" if matches.found == 1 else "matches"
    more = " or more" if matches.count_cut or matches.stopped else ""
    lines = [f"Found {matches.found}{more} {noun}.", *matches.lines]
    where = "" if saved is None else f" All of them: {saved}"
    if matches.found > matches.limit:
        lines.append(f"[Showing the first {matches.limit}. Use max_results for more.{where}]")
    if matches.output_cut:
        lines.append(f"[Output cut at {MAX_BYTES} bytes. Narrow the search.{where}]")
    if matches.lines_cut:
        lines.append(f"[Long lines cut at {MAX_LINE_CHARS} characters.]")
    if matches.stopped:
        lines.append(f"[Stopped after {TIMEOUT_MS} ms. Narrow the search.]")
    details = {
        "matches": matches.found,
        "timed_out": matches.stopped,
        "full_output_path": None if saved is None else str(saved),
    }
    return AgentToolResult.of_text("\n".join(lines), details=details)
