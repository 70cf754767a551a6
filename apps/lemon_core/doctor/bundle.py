"""The support bundle: a zip that can be handed to somebody else.

Everything in it is made for it, nothing is copied: states, counts and sizes, the doctor's report,
and the configuration with its secrets taken out. What is told goes through one redactor, which also
knows the secrets of this installation.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio

from lemon_core.config.source import read_toml
from lemon_core.doctor.areas import AREAS
from lemon_core.doctor.checks import contributed_areas
from lemon_core.doctor.config_view import config_view
from lemon_core.doctor.context import DoctorArea, DoctorContext
from lemon_core.doctor.readiness import Readiness
from lemon_core.doctor.redaction import Redactor, is_sensitive, secrets_in, url_secrets
from lemon_core.doctor.report import Check, Report
from lemon_core.errors import LemonError
from lemon_core.logs import get_logger
from lemon_core.runtime_env import build_info
from lemon_core.single_errors import single_errors

FORMAT: Final = 1
AREA_TIMEOUT_S: Final = 15.0

# Variables whose values are shown; of the rest not even the names are told.
ALLOWED_VARIABLES: Final = (
    "COLORTERM",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LEMON_AGENT_DIR",
    "LEMON_CONTROL_PLANE_PORT",
    "LEMON_DEBUG",
    "LEMON_DEFAULT_MODEL",
    "LEMON_DEFAULT_PROVIDER",
    "LEMON_DEFAULT_THINKING_LEVEL",
    "LEMON_DOTENV_DIR",
    "LEMON_ENV",
    "LEMON_GATEWAY_MAX_CONCURRENT_RUNS",
    "LEMON_LOG_LEVEL",
    "LEMON_PATH",
    "LEMON_RUNTIME_PROFILE",
    "LEMON_SIM_UI_PORT",
    "LEMON_STORE_BACKEND",
    "LEMON_STORE_PATH",
    "LEMON_TERMINAL_BACKENDS_ALLOW",
    "LEMON_TERMINAL_BACKENDS_DENY",
    "LEMON_TERMINAL_BACKENDS_REQUIRE_APPROVAL",
    "LEMON_WEB_PORT",
    "NO_COLOR",
    "PATH",
    "SHELL",
    "TERM",
    "TZ",
)

# These name a folder or a file, `PWD` for example, whatever else they sound like.
_PLACES: Final = ("PWD", "_DIR", "_FILE", "_PATH", "_SOCK")

_README: Final = """\
Lemon support bundle

Made by `lemon doctor --bundle` for whoever helps to find a fault. Look through it before you hand
it on: it is a zip of text files.

  manifest.json      what is in here, and what made it
  doctor.json        the checks and what they found
  readiness.json     whether Lemon is ready, and what stands in the way
  environment.json   a fixed list of harmless variables; no other is looked at
  config/            the configuration: keys, and the values that say nothing private
  diagnostics/       one file for each area, with what it leaves out

Not in here: keys, tokens and passwords; prompts, answers and tool output; log lines; rows of the
database; names of sessions, chats and people. {redacted} stands where something was taken out, and
~ for the home directory.
"""

log = get_logger("lemon_core.doctor")


class BundleNotWritten(LemonError):
    """The support bundle could not be written; nothing of it is left."""

    code = "bundle_not_written"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: the support bundle cannot be written: {reason}")
        self.path = path


def default_bundle_path(context: DoctorContext) -> Path:
    """`~/.lemon/support-bundles/lemon-doctor-bundle-<UTC>.zip`."""
    return context.paths.state_dir / "support-bundles" / _bundle_name(context)


async def write_bundle(
    context: DoctorContext,
    report: Report,
    path: Path | None = None,
    *,
    contributed: Iterable[object] = (),
) -> Path:
    """Write the bundle to `path`, or into it when it is a folder, and return where it is.

    The file is its owner's alone (0600). Raises `BundleNotWritten`, also when the file is there.
    """
    target = default_bundle_path(context) if path is None else path
    if target.is_dir():
        target = target / _bundle_name(context)
    areas = (*AREAS, *contributed_areas(context, contributed))
    files = await bundle_files(context, report, areas)
    await anyio.to_thread.run_sync(_write, target, files, path is None)
    return target


async def bundle_files(
    context: DoctorContext, report: Report, areas: Sequence[DoctorArea]
) -> dict[str, str]:
    """The bundle's files by name, redacted."""
    redactor, model = redactor_of(context), type(context.config)
    shown = _redacted(report, redactor)
    found: dict[str, object] = {
        "doctor.json": shown.as_dict(),
        "readiness.json": Readiness.of(shown).as_dict(),
        "environment.json": _environment(context, redactor),
        "config/global.json": config_view(context.paths.config_file, model, redactor),
        "config/project.json": config_view(context.project_file, model, redactor),
    }
    for area in areas:
        name = re.sub(r"[^A-Za-z0-9_-]", "_", area.name)
        found[f"diagnostics/{name}.json"] = await _told(context, area, redactor)
    found["manifest.json"] = {
        "format": FORMAT,
        "created_at": _utc(context).isoformat(timespec="seconds"),
        "lemon": build_info().version,
        "python": build_info().python,
        "platform": build_info().platform,
        "files": sorted(["README.txt", "manifest.json", *found]),
    }
    texts = {name: f"{json.dumps(value, indent=2)}\n" for name, value in sorted(found.items())}
    return {"README.txt": _README.format(redacted="[REDACTED]"), **texts}


def redactor_of(context: DoctorContext) -> Redactor:
    """A redactor that knows what is secret in this environment and configuration."""
    return Redactor.knowing(_known_secrets(context), home=str(context.paths.home))


def _known_secrets(context: DoctorContext) -> Iterator[str]:
    for name, value in context.environ.items():
        if is_sensitive(name) and not name.endswith(_PLACES):
            yield value
        yield from url_secrets(value)
    for path in (context.paths.config_file, context.project_file):
        yield from secrets_in(read_toml(path).data)


def _redacted(report: Report, redactor: Redactor) -> Report:
    """`report` as it may be handed on.

    Configuration errors quote values that stand where they should not, so nothing tells whether
    they are secret: they go as a whole.
    """
    return Report(tuple(_redacted_check(check, redactor) for check in report.checks))


def _redacted_check(check: Check, redactor: Redactor) -> Check:
    message, remedy = check.message, check.remediation
    if check.name.startswith("config."):
        message = "\n".join(re.sub(r", not .*$", "", line) for line in message.splitlines())
        message = redactor.prose(message)
    else:
        message = redactor.text(message)
    remedy = None if remedy is None else redactor.prose(remedy)
    return replace(check, message=message, remediation=remedy)


def _environment(context: DoctorContext, redactor: Redactor) -> dict[str, object]:
    environ = context.environ
    return {
        "variables": {
            name: redactor.text(environ[name]) for name in ALLOWED_VARIABLES if name in environ
        },
        "leaves_out": ["every variable that is not in a fixed list of harmless ones"],
    }


async def _told(
    context: DoctorContext, area: DoctorArea, redactor: Redactor
) -> Mapping[str, object]:
    """The file of one area; one that fails says so and takes nothing along."""
    head: dict[str, object] = {"area": area.name, "leaves_out": list(area.leaves_out)}
    data: object = None
    try:
        with single_errors(), anyio.move_on_after(AREA_TIMEOUT_S):
            data = redactor.data(await area.collect(context))
    except Exception as exc:
        # A damaged area is a reason to want the bundle, so it must not keep it from being made.
        log.exception("doctor.area_failed", area=area.name)
        return {**head, "error": redactor.text(f"{type(exc).__name__}: {exc}")}
    if data is None:
        return {**head, "error": f"no answer within {AREA_TIMEOUT_S:.0f} s"}
    return {**head, "data": data}


def _write(target: Path, files: Mapping[str, str], is_ours: bool) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(f"lemon-doctor-bundle/{name}", text)
    try:
        if is_ours:
            target.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            target.parent.chmod(0o700)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as exc:
        raise BundleNotWritten(target, "it is there already; name another file") from exc
    except OSError as exc:
        raise BundleNotWritten(target, f"{exc.strerror}") from exc
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # whatever the umask took away
            file.write(content.getvalue())
    except OSError as exc:
        with suppress(OSError):
            target.unlink()
        raise BundleNotWritten(target, f"{exc.strerror}") from exc


def _bundle_name(context: DoctorContext) -> str:
    return f"lemon-doctor-bundle-{_utc(context):%Y%m%dT%H%M%SZ}.zip"


def _utc(context: DoctorContext) -> datetime:
    return datetime.fromtimestamp(context.clock.now_ms() / 1000, UTC)
