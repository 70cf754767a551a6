"""A reloader over the files of a temporary home, for the tests of reloading and watching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from lemon_core.bus import Bus, Subscription
from lemon_core.config.load import LoadedConfig, load_config, load_validated
from lemon_core.config.reload import ConfigPorts, ConfigReloader
from lemon_core.store import StoreUnavailable
from lemon_core.telemetry import Telemetry
from lemon_core.tests.config.homes import Home


@dataclass
class Desk:
    """A reloader over the files of a home, and what it did."""

    home: Home
    bus: Bus = field(default_factory=Bus)
    applied: list[LoadedConfig] = field(default_factory=list)
    loads: list[bool] = field(default_factory=list)
    marks: dict[str, object] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)
    gate: anyio.Event | None = None
    store_is_down: bool = False

    def reloader(self) -> ConfigReloader:
        telemetry = Telemetry()
        telemetry.attach("lemon.config", lambda name, numbers, meta: self.numbers.append(name))
        files = (self.home.global_file, self.home.project_file)
        ports = ConfigPorts(
            self.load,
            lambda before, after: self.applied.append(after),
            self.secrets,
            files,
            self.home.paths.state_dir / ".env",
        )
        return ConfigReloader(self.home.load(), ports, self.bus, telemetry)

    async def load(self, validate: bool) -> LoadedConfig:
        self.loads.append(validate)
        if self.gate is not None:
            await self.gate.wait()
        load = load_validated if validate else load_config
        return load(self.home.project, paths=self.home.paths, environ={})

    async def secrets(self) -> Mapping[str, object]:
        if self.store_is_down:
            raise StoreUnavailable("the store does not answer")
        return dict(self.marks)


def published(events: Subscription) -> list[object]:
    """The payloads that are waiting."""
    return [event.payload for event in events._buffer]
