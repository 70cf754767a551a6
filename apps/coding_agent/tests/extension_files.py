"""Extensions as files, and the runtime that looks for them."""

from __future__ import annotations

from pathlib import Path

from coding_agent.extensions.finding import ExtensionSettings
from coding_agent.extensions.host import Extensions
from coding_agent.extensions.registration import ProviderRegistration
from coding_agent.foreign_tools import ForeignTools
from coding_agent.wasm.host import WasmPlaces, WasmTools
from lemon_agent.tool_registry import ToolRegistry
from lemon_core.address_guard import AddressGuard, system_lookup
from lemon_core.bus import Bus
from lemon_core.config.tools import Wasm
from lemon_core.master_key import MasterKeyChain
from lemon_core.paths import PathSettings
from lemon_core.secrets import Secrets
from lemon_core.store import Store
from lemon_core.store.memory import MemoryBackend
from lemon_core.telemetry import Telemetry
from lemon_core.testing import FakeClock
from lemon_core.tool_classes import ToolClassTable

HEAD = """
from coding_agent.extensions import ExtensionTool, Provider
from lemon_agent import AgentTool, AgentToolResult, ToolError

def made(name, said, **more):
    async def execute(call):
        if said == "raise":
            raise RuntimeError("broken")
        if said == "exit":
            raise SystemExit(3)
        return AgentToolResult.of_text(said)
    return AgentTool(name, f"Says {said}.", {"type": "object", "properties": {}}, execute, **more)
"""


def extension_source(name: str, body: str = "pass", *, version: str = "1") -> str:
    """A module whose extension has these methods."""
    indented = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    head = f"class It:\n    name = {name!r}\n    version = {version!r}\n"
    return f"{HEAD}\n{head}{indented}\nEXTENSION = It()\n"


def write_extension(folder: Path, name: str, body: str = "pass") -> Path:
    """One module in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(extension_source(name, body), encoding="utf-8")
    return path


class Place:
    """What an `Extensions` reads, to be changed by a test."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.trusted: set[Path] = set()
        self.table = ToolClassTable()
        self.telemetry = Telemetry()
        self.settings = ExtensionSettings(
            enabled=True,
            auto_load=False,
            absolute=(folder / "configured",),
            relative=(),
            project=folder / "project",
            agent_dir=folder / "agent",
        )
        self.registration = ProviderRegistration({})
        self.wasm_settings = Wasm()
        self.store = Store(MemoryBackend())
        secrets = Secrets(self.store, self.clock, MasterKeyChain(()), Bus(), {})
        self.wasm = WasmTools(
            lambda: self.wasm_settings,
            WasmPlaces(
                PathSettings(folder),
                self.settings.agent_dir,
                self.settings.project,
                self.trusted.__contains__,
            ),
            secrets,
            lambda: AddressGuard(system_lookup),
            self.clock,
        )
        self.host = Extensions(
            lambda: self.settings, self.trusted.__contains__, self.registration, self.clock
        )

    def foreign(self, own: frozenset[str] = frozenset()) -> ForeignTools:
        """The tools of elsewhere, with these names taken."""
        return ForeignTools(
            lambda: own, self.table, self.host, self.wasm, ToolRegistry(), self.telemetry
        )
