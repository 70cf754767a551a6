"""What `lemon doctor` sees of a gateway's configuration."""

from __future__ import annotations

from collections.abc import Mapping

import tomlkit

from lemon_core.clock import SystemClock
from lemon_core.doctor.context import DoctorContext, doctor_context
from lemon_core.paths import PathSettings
from lemon_core.testing import scrubbed_environ


def doctor_view(
    paths: PathSettings, gateway: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> DoctorContext:
    """An installation whose file says `gateway`, as `[gateway]`."""
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(tomlkit.dumps({"gateway": dict(gateway)}))
    return doctor_context(
        paths.home,
        paths=paths,
        environ=scrubbed_environ(paths.home, environ),
        clock=SystemClock(),
    )
