"""What a release offers: the manifest, and the artifact in it that fits this machine."""

from __future__ import annotations

import platform as host
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lemon_core.calver import CalVer
from lemon_core.update_errors import UpdateRefused, UpdateUnavailable

SCHEMA: Final = 2
Channel = Literal["stable", "preview", "nightly"]
CHANNELS: Final[tuple[Channel, ...]] = ("stable", "preview", "nightly")

_ARCHITECTURES: Final = {"aarch64": "arm64", "amd64": "x86_64"}
_SHORT_PROFILES: Final = {"sim_broadcast_platform": "sim"}


def _bare_name(name: str) -> str:
    if name != name.strip() or name in ("", ".", "..") or any(char in name for char in "/\\\0:"):
        raise ValueError("must be a bare file name")
    return name


def _version(text: str) -> str:
    return str(CalVer.parse(text))


class Artifact(BaseModel):
    """One archive of a release."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    file: Annotated[str, Field(max_length=255), AfterValidator(_bare_name)]
    profile: str
    platform: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(gt=0)]
    glibc_min: str | None = None


class ReleaseManifest(BaseModel):
    """One release of one channel; consumers match its fields, never file names."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    version: Annotated[str, AfterValidator(_version)]
    channel: Channel
    artifacts: Annotated[tuple[Artifact, ...], Field(strict=False)]


@dataclass(frozen=True, slots=True)
class Machine:
    """What an artifact has to fit; `glibc` is None where there is none."""

    platform: str
    profile: str
    glibc: tuple[int, ...] | None

    @classmethod
    def here(
        cls,
        profile: str,
        *,
        system: str = sys.platform,
        machine: Callable[[], str] = host.machine,
        libc: Callable[[], tuple[str, str]] = host.libc_ver,
    ) -> Machine:
        """This machine, running `profile`."""
        arch = machine().lower()
        name, version = libc()
        glibc = _numbers(version) if name == "glibc" else None
        return cls(f"{system}-{_ARCHITECTURES.get(arch, arch)}", profile, glibc)


def parse_manifest(content: bytes, source: str) -> ReleaseManifest:
    """The manifest in `content`; raises `UpdateUnavailable`, naming `source`.

    Another schema is refused whatever else stands in it.
    """
    import json

    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise UpdateUnavailable(f"{source} is not JSON: {exc}") from exc
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA or isinstance(schema, bool):
        raise UpdateUnavailable(
            f"{source} has schema {schema!r:.40}, this Lemon reads schema {SCHEMA}"
        )
    try:
        return ReleaseManifest.model_validate(raw)
    except ValidationError as exc:
        told = "; ".join(
            f"{'.'.join(map(str, error['loc']))}: {error['msg']}"
            for error in exc.errors(include_url=False, include_input=False)[:5]
        )
        raise UpdateUnavailable(f"{source} is no usable manifest: {told}") from exc


def choose_artifact(manifest: ReleaseManifest, machine: Machine) -> Artifact:
    """The archive for `machine`; raises `UpdateRefused` when there is none, or its C library is
    too old for it."""
    for artifact in manifest.artifacts:
        if artifact.platform == machine.platform and _short(artifact.profile) == _short(
            machine.profile
        ):
            _require_glibc(artifact, machine)
            return artifact
    raise UpdateRefused(
        f"{manifest.version} has no archive for {machine.platform}, profile {machine.profile}"
    )


def _short(profile: str) -> str:
    name = profile.removeprefix("lemon_").removeprefix("runtime_")
    return _SHORT_PROFILES.get(name, name)


def _require_glibc(artifact: Artifact, machine: Machine) -> None:
    needed = _numbers(artifact.glibc_min or "")
    if needed and machine.glibc is not None and machine.glibc < needed:
        have = ".".join(map(str, machine.glibc))
        raise UpdateRefused(
            f"{artifact.file} needs glibc {artifact.glibc_min}, this machine has {have}"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
