"""What the doctor says of extensions and WASM tools; it imports and runs none of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coding_agent.doctor import CHECKS, extensions, wasm
from coding_agent.tests.extension_files import write_extension
from lemon_core.clock import SystemClock
from lemon_core.config.trust import TrustedProjects
from lemon_core.doctor.context import DoctorContext, doctor_context
from lemon_core.paths import PathSettings
from lemon_core.testing import scrubbed_environ, temp_home

pytestmark = pytest.mark.anyio

DEFAULTS = "[runtime.extensions]\nauto_load_default_paths = true\n"


@dataclass
class Scene:
    paths: PathSettings
    project: Path

    def view(self, config: str = "") -> DoctorContext:
        self.paths.state_dir.mkdir(exist_ok=True)
        self.paths.config_file.write_text(config)
        environ = scrubbed_environ(self.paths.home)
        return doctor_context(self.project, paths=self.paths, environ=environ, clock=SystemClock())

    @property
    def agent_dir(self) -> Path:
        return self.paths.state_dir / "agent"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Scene]:
    with temp_home() as paths:
        yield Scene(paths, tmp_path.resolve())


async def test_extensions_are_told_with_the_reason_why_one_is_not_loaded(here: Scene) -> None:
    assert (await extensions(here.view())).status == "skip"
    path = write_extension(here.agent_dir / "extensions", "mine")
    path.write_text("raise SystemExit('imported')\n")
    found = await extensions(here.view())
    assert (found.status, found.message) == ("pass", "to be loaded: none; switched off: 1")
    found = await extensions(here.view(DEFAULTS))
    assert (found.status, found.message) == ("pass", "to be loaded: mine")

    write_extension(here.project / ".lemon" / "extensions", "theirs")
    found = await extensions(here.view(DEFAULTS))
    assert (found.status, found.message) == ("warn", "not loaded: theirs")
    assert found.remediation is not None
    assert found.remediation.endswith(f"lemon config trust {here.project}")
    TrustedProjects(here.paths).trust(here.project)
    found = await extensions(here.view(DEFAULTS))
    assert found.message == "to be loaded: mine, theirs"

    path.chmod(0o666)
    found = await extensions(here.view(DEFAULTS))
    assert (found.status, found.message) == (
        "warn",
        f"mine: {path}: everybody may write it: chmod o-w",
    )


async def test_wasm_tools_are_told_as_far_as_they_say_what_they_are(here: Scene) -> None:
    on = "[runtime.tools.wasm]\nenabled = true\n"
    assert (await wasm(here.view())).message == "runtime.tools.wasm.enabled is off"
    assert (await wasm(here.view(on))).message == "there is no WASM tool"
    folder = here.agent_dir / "wasm-tools"
    folder.mkdir(parents=True)
    (folder / "mine.wasm").write_bytes(b"no module")
    found = await wasm(here.view(on))
    assert (found.status, found.message) == ("pass", "WASM tools: mine")
    theirs = here.project / ".lemon" / "wasm-tools"
    theirs.mkdir(parents=True)
    (theirs / "other.wasm").write_bytes(b"")
    found = await wasm(here.view(on))
    assert (found.status, found.message) == ("warn", "not loaded: other")
    (folder / "mine.capabilities.json").write_text("{")
    found = await wasm(here.view(on))
    assert found.status == "warn"
    assert found.message.startswith("mine: mine.capabilities.json cannot be read")
    assert [check.name for check in CHECKS] == ["extensions.loading", "wasm.tools"]
