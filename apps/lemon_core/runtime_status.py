"""Whether the parts of a runtime that should be up are up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """`degraded` when an expected app is `missing`; `apps` are those that are up."""

    status: Literal["ok", "degraded"]
    apps: tuple[str, ...]
    missing: tuple[str, ...] = ()


def runtime_status(up: Iterable[str], expected: Iterable[str]) -> RuntimeStatus:
    """The status of a runtime whose apps `up` are up, each app named once."""
    apps = tuple(dict.fromkeys(up))
    missing = tuple(app for app in dict.fromkeys(expected) if app not in apps)
    return RuntimeStatus("degraded" if missing else "ok", apps, missing)
