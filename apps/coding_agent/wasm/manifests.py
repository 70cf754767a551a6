"""WASM tools as they lie in folders: `<name>.wasm` beside `<name>.capabilities.json`.

The JSON says what the tool is and what it may do; without it a module may do nothing but compute.
Nothing is compiled or run here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coding_agent.extensions.checking import schema_fault
from lemon_core.config.tools import Wasm
from lemon_core.known_secrets import KNOWN_SECRETS
from lemon_core.paths import PathSettings
from lemon_core.tool_classes import ToolClass

FOLDER: Final = "wasm-tools"
MAX_JSON_BYTES: Final = 262_144
MAX_TOOLS: Final = 100
MAX_KNOWN: Final = 1_000
SUFFIX: Final = ".capabilities.json"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")

Text = Annotated[str, Field(min_length=1, max_length=4_096)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class AllowedHost(_Part):
    """Requests that a tool may make; `path_prefix` ends at a slash of the path."""

    host: Text
    scheme: Literal["https", "http"] = "https"
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    path_prefix: str = "/"
    methods: tuple[Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"], ...] = ("GET",)


class Http(_Part):
    """Where a tool may reach out to."""

    allow: tuple[AllowedHost, ...] = ()
    timeout_ms: Annotated[int, Field(ge=100, le=60_000)] = 30_000


class Workspace(_Part):
    """What of the workspace a tool may read, by the beginnings of relative paths."""

    read_prefixes: tuple[str, ...] = ()


class Auth(_Part):
    """A token of the tool's: it goes into `header` of allowed requests, and never into the tool."""

    secret_name: Text
    env_var: Text | None = None
    header: Text = "Authorization"
    prefix: str = "Bearer "
    instructions: str = ""


class Capabilities(_Part):
    """What a tool may do; what is not said is denied."""

    http: Http | None = None
    secrets: tuple[Text, ...] = ()
    workspace: Workspace | None = None
    # alias -> the tool that a call of the alias runs
    tool_invoke: Mapping[Text, Text] = {}


class WasmManifest(_Part):
    """`<name>.capabilities.json`."""

    description: Text = "A tool of the user's own."
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    classes: tuple[ToolClass, ...] | None = None
    capabilities: Capabilities = Capabilities.model_construct()
    auth: Auth | None = None

    @field_validator("parameters")
    @classmethod
    def _is_schema(cls, value: dict[str, Any]) -> dict[str, Any]:
        if (fault := schema_fault(value)) is not None:
            raise ValueError(fault)
        return value


@dataclass(frozen=True, slots=True)
class WasmTool:
    """A module with what it says of itself."""

    name: str
    path: Path
    manifest: WasmManifest
    source: str

    @property
    def classes(self) -> frozenset[ToolClass]:
        """What policies see: as declared, else dangerous and external; reaching out is external
        and running other tools dangerous whatever is declared."""
        can = self.manifest.capabilities
        if self.manifest.classes is None:
            return frozenset({"dangerous", "external"})
        more: set[ToolClass] = set(self.manifest.classes)
        if can.http is not None:
            more.add("external")
        if can.tool_invoke:
            more.add("dangerous")
        return frozenset(more)

    @property
    def asks(self) -> bool:
        """Whether its calls need an approval unless the policy says `never`."""
        can = self.manifest.capabilities
        return can.http is not None or bool(can.tool_invoke)


@dataclass(frozen=True, slots=True)
class Found:
    """Tools by name, what is not used and why, and what is wrong."""

    tools: tuple[WasmTool, ...] = ()
    not_loaded: tuple[dict[str, str], ...] = ()
    problems: tuple[dict[str, str], ...] = ()


Known = dict[Path, tuple[object, WasmTool]]


def wasm_folders(
    settings: Wasm, paths: PathSettings, agent_dir: Path, project: Path, cwd: Path
) -> list[tuple[Path, str, bool]]:
    """Folder, source, and whether it needs the project's trust; the earlier ones win a name.

    `project` is where Lemon was started: relative paths of the configuration begin there.
    """
    expanded = [paths.expand(text) for text in settings.tool_paths]
    return [
        *((project / path, "configured", not path.is_absolute()) for path in expanded),
        (agent_dir / FOLDER, "agent", False),
        (cwd / ".lemon" / FOLDER, "project", True),
    ]


def find_tools(
    folders: Sequence[tuple[Path, str, bool]],
    is_trusted: Callable[[Path], bool],
    project: Path,
    cwd: Path,
    known: Known | None = None,
) -> Found:
    """What lies in these folders; `known` keeps what was read while its files are the same.

    Blocking.
    """
    known = {} if known is None else known
    tools: dict[str, WasmTool] = {}
    not_loaded: list[dict[str, str]] = []
    problems: list[dict[str, str]] = []
    for folder, source, needs_trust in folders:
        files = sorted(folder.glob("*.wasm"))[:MAX_TOOLS] if folder.is_dir() else []
        owner = cwd if source == "project" else project
        if files and needs_trust and not is_trusted(owner):
            reason = f"the project is not trusted: lemon config trust {owner}"
            not_loaded += [{"name": f.stem, "path": str(f), "reason": reason} for f in files]
            continue
        for file in files:
            try:
                if file.stem not in tools:
                    tools[file.stem] = _kept(file, source, known)
            except ValueError as exc:
                problems.append({"name": file.stem, "path": str(file), "error": str(exc)})
    return Found(tuple(tools[name] for name in sorted(tools)), tuple(not_loaded), tuple(problems))


def _kept(file: Path, source: str, known: Known) -> WasmTool:
    # The same object while nothing changed: schemas are serialised once for each.
    mark = (source, _mark(file), _mark(file.with_suffix(SUFFIX)))
    before = known.get(file)
    if before is None or before[0] != mark:
        if len(known) >= MAX_KNOWN:
            known.clear()
        before = known[file] = (mark, _read(file, source))
    return before[1]


def _mark(file: Path) -> tuple[int, ...] | None:
    try:
        seen = file.stat()
    except OSError:
        return None
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def _read(file: Path, source: str) -> WasmTool:
    if _NAME.fullmatch(file.stem) is None:
        raise ValueError("its name is not of small letters, digits and '_'")
    beside = file.with_suffix(SUFFIX)
    if not beside.exists():
        return WasmTool(file.stem, file, WasmManifest(), source)
    if not beside.is_file() or beside.stat().st_size > MAX_JSON_BYTES:
        raise ValueError(f"{beside.name} is no file of at most {MAX_JSON_BYTES >> 10} KiB")
    try:
        manifest = WasmManifest.model_validate(json.loads(beside.read_bytes()))
    except ValidationError as exc:
        faults = [
            f"{'.'.join(map(str, error['loc']))}: {error['msg']}"
            for error in exc.errors(include_url=False, include_input=False)
        ]
        raise ValueError(f"{beside.name}: {'; '.join(faults)}") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise ValueError(f"{beside.name} cannot be read: {exc}") from exc
    if manifest.auth is not None:
        _check_auth(file.stem, manifest.auth)
    return WasmTool(file.stem, file, manifest, source)


def _check_auth(name: str, auth: Auth) -> None:
    """A tool has a token of its own: it may name neither another secret nor another's variable."""
    if not auth.secret_name.startswith(f"wasm_{name}"):
        raise ValueError(f"auth.secret_name: must begin with wasm_{name}")
    variable = auth.env_var
    if variable is not None and (variable in KNOWN_SECRETS or variable.startswith("LEMON_")):
        raise ValueError(f"auth.env_var: {variable} belongs to Lemon")
