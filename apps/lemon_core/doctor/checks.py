"""The doctor's own checks, those that apps add, and the run over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import anyio

from lemon_core.doctor import (
    config_checks,
    extension_checks,
    host_checks,
    provider_checks,
    state_checks,
)
from lemon_core.doctor.context import DoctorArea, DoctorCheck, DoctorContext, DoctorItem
from lemon_core.doctor.redaction import redact_prose
from lemon_core.doctor.report import Check, Finding, Report, skipped, warned
from lemon_core.logs import get_logger
from lemon_core.profiles import app_of, load_target
from lemon_core.single_errors import single_errors

DOCTOR_CHECKS: Final = "doctor_checks"
"""The capability under which components contribute `DoctorItem`s to a runtime."""

CHECK_TIMEOUT_S: Final = 15.0

BUILT_IN: Final[tuple[DoctorCheck, ...]] = (
    DoctorCheck("config.global_exists", config_checks.global_exists),
    DoctorCheck("config.global_valid", config_checks.global_valid),
    DoctorCheck("config.project_valid", config_checks.project_valid),
    DoctorCheck("secrets.master_key", state_checks.master_key),
    DoctorCheck("runtime.control_port", host_checks.control_port),
    DoctorCheck("runtime.lemon_root", host_checks.lemon_root),
    DoctorCheck("providers.default", provider_checks.default_provider),
    DoctorCheck("providers.credentials", provider_checks.credentials),
    DoctorCheck("providers.routing", provider_checks.routing),
    DoctorCheck("usage.status", state_checks.usage_status),
    DoctorCheck("skills.directory", state_checks.skills_directory),
    DoctorCheck("node_tools.git", host_checks.git),
    DoctorCheck("node_tools.node", host_checks.node),
    DoctorCheck("node_tools.npm", host_checks.npm),
    DoctorCheck("store.ping", state_checks.ping),
    DoctorCheck("terminal.backends", host_checks.backends),
    DoctorCheck("extensions.manifests", extension_checks.manifests),
)

log = get_logger("lemon_core.doctor")


async def run_doctor(context: DoctorContext, contributed: Iterable[object] = ()) -> Report:
    """The report of the built-in checks and then of `contributed`, which also may hold areas.

    `contributed` is what the capability `doctor_checks` of a runtime has; without a runtime the
    profile of `context` names the apps to ask. A check that crashes or hangs is one warning.
    """
    found, missing = _contributions(context, contributed)
    checks = [await _looked(context, check) for check in BUILT_IN]
    checks += [await _looked(context, item) for item in found if isinstance(item, DoctorCheck)]
    return Report((*checks, *missing))


def contributed_areas(
    context: DoctorContext, contributed: Iterable[object] = ()
) -> list[DoctorArea]:
    """What apps add to a support bundle."""
    found, _missing = _contributions(context, contributed)
    return [item for item in found if isinstance(item, DoctorArea)]


async def _looked(context: DoctorContext, check: DoctorCheck) -> Check:
    finding = warned(
        f"the check gave no answer within {CHECK_TIMEOUT_S:.0f} s", "try again; the rest went on"
    )
    try:
        with single_errors(), anyio.move_on_after(CHECK_TIMEOUT_S):
            finding = await check.look(context)
    except Exception as exc:
        # One check's fault must not keep the others from being told.
        log.exception("doctor.check_crashed", check=check.name)
        finding = warned(
            f"the check itself failed: {type(exc).__name__}: {exc}",
            "this is a fault of Lemon or of an extension: please report it",
        )
    # A message may quote what a file says, a URL with its password for example.
    return Check(check.name, finding.status, redact_prose(finding.message), finding.remediation)


def _contributions(
    context: DoctorContext, given: Iterable[object]
) -> tuple[list[DoctorItem], list[Check]]:
    """The usable contributions, and a check for each that could not be had."""
    items = [item for item in given if isinstance(item, DoctorCheck | DoctorArea)]
    missing: list[Check] = []
    for target in context.profile.doctor_checks if context.profile is not None else ():
        app = app_of(target)
        try:
            loaded = load_target(target)
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] == app:
                missing.append(Check.of(app, skipped("not part of this installation")))
            else:
                missing.append(Check.of(app, _unloadable(target, exc)))
        except Exception as exc:  # whatever a foreign module does when it is imported
            missing.append(Check.of(app, _unloadable(target, exc)))
        else:
            items += [i for i in _sequence(loaded) if isinstance(i, DoctorCheck | DoctorArea)]
    return list(dict.fromkeys(items)), missing


def _unloadable(target: str, exc: Exception) -> Finding:
    return warned(f"{target} cannot be loaded: {type(exc).__name__}: {exc}", "reinstall Lemon")


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) else (value,)
