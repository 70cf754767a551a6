"""Manifests of extensions: read and checked as data, before anything of an extension is trusted.

A manifest is one JSON file in the extension's folder. Nothing is imported, run or fetched here,
so a folder that nobody trusts can be looked at.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lemon_core.errors import LemonError

MANIFEST_NAMES: Final = ("lemon_extension.json", "extension.json", ".lemon-extension.json")
"""In this order; the first one that is there counts."""
MANIFEST_MAX_BYTES: Final = 256 * 1_024
SCHEMA_VERSION: Final = 1

ProviderType = Literal["model", "memory", "tool_executor", "storage"]
HostType = Literal["python", "wasm", "mcp", "external"]
DistributionType = Literal["local", "git", "github", "registry", "archive"]
AuditStatus = Literal["pending", "passed", "warn", "blocked", "unknown"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=128)]
Text = Annotated[str, Field(min_length=1, max_length=4_096, pattern=r"\S")]


class _Part(BaseModel):
    # Keys that are not known here are passed over: they are for readers that know them.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class ProviderEntry(_Part):
    """Something that the extension offers to the rest of Lemon."""

    type: ProviderType
    name: Name | None = None


class HostEntry(_Part):
    """What the extension runs in."""

    type: HostType


class DistributionEntry(_Part):
    """Where the extension comes from."""

    type: DistributionType
    source: Text | None = None


class AuditEntry(_Part):
    """What a review of the extension found."""

    status: AuditStatus


class ExtensionManifest(_Part):
    """What an extension says about itself; `host` None means Python."""

    name: Name
    version: Text
    schema_version: Literal[1]
    description: Text | None = None
    # Not strict about the container: JSON knows only lists.
    providers: tuple[ProviderEntry, ...] = Field((), strict=False)
    host: HostEntry | None = None
    distribution: DistributionEntry | None = None
    audit: AuditEntry | None = None


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """One fault; `path` is dotted (`providers.0.type`), empty for the file as a whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ManifestInvalid(LemonError):
    """A manifest that cannot be used; `problems` are all of its faults."""

    code = "invalid_extension_manifest"

    def __init__(self, path: Path, problems: Sequence[ManifestProblem]) -> None:
        told = "; ".join(map(str, problems))
        super().__init__(f"{path}: {told}")
        self.path, self.problems = path, tuple(problems)


def manifest_file(path: Path) -> Path | None:
    """The manifest that `path` is, or that the folder `path` holds; None without one."""
    if not path.is_dir():
        return path if path.exists() or path.is_symlink() else None
    found = (path / name for name in MANIFEST_NAMES)
    return next((file for file in found if file.exists() or file.is_symlink()), None)


def read_manifest(path: Path) -> ExtensionManifest:
    """The manifest in file `path`; raises `ManifestInvalid` with everything that is wrong.

    Blocking: one file of at most 256 KiB.
    """
    raw = _parsed(path, _content(path))
    try:
        return ExtensionManifest.model_validate(raw)
    except ValidationError as exc:
        problems = [
            ManifestProblem(".".join(map(str, error["loc"])), _message(error["msg"], error["type"]))
            for error in exc.errors(include_url=False, include_input=False)
        ]
        raise ManifestInvalid(path, problems) from exc


def _content(path: Path) -> bytes:
    try:
        # A link could name any file, and a pipe would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        why = "is a link" if path.is_symlink() else f"cannot be read ({exc.strerror})"
        raise _invalid(path, why) from exc
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _invalid(path, "is no regular file")
        with open(fd, "rb", closefd=False) as file:
            content = file.read(MANIFEST_MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > MANIFEST_MAX_BYTES:
        raise _invalid(path, f"is larger than {MANIFEST_MAX_BYTES // 1_024} KiB")
    return content


def _parsed(path: Path, content: bytes) -> dict[str, object]:
    try:
        raw = json.loads(content, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise _invalid(path, f"is not JSON ({exc})") from exc
    if not isinstance(raw, dict):
        raise _invalid(path, "holds no JSON object")
    return raw


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands there twice")
    return found


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON value")


def _message(message: str, kind: str) -> str:
    known = {"missing": "is required", "string_pattern_mismatch": "is not of the form it must have"}
    return known.get(kind, message[:1].lower() + message[1:])


def _invalid(path: Path, message: str) -> ManifestInvalid:
    return ManifestInvalid(path, (ManifestProblem("", message),))
