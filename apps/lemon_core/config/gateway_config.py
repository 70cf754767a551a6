"""The one way to ask for a key of the `gateway` section, channels included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lemon_core.config.contributed import NOTHING_CONTRIBUTED, Contributed
from lemon_core.config.gateway import GatewaySection
from lemon_core.config.load import load_config
from lemon_core.paths import PathSettings


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The `gateway` section as it was resolved; `config.gateway` of a runtime is one too."""

    section: GatewaySection

    @classmethod
    def load(
        cls,
        cwd: Path | None,
        *,
        paths: PathSettings,
        environ: Mapping[str, str],
        contributed: Contributed = NOTHING_CONTRIBUTED,
    ) -> GatewayConfig:
        """The section for work in `cwd`, by the plain load; raises `ConfigError` as that does."""
        loaded = load_config(cwd, paths=paths, environ=environ, contributed=contributed)
        return cls(loaded.config.gateway)

    def get(self, key: str, default: object = None) -> object:
        """The value at the dotted `key`; `default` when nothing is there or it is not set."""
        found: object = self.section
        for name in key.split("."):
            if isinstance(found, Mapping):
                found = found.get(name)
            else:
                found = getattr(found, name, None) if name in _fields(found) else None
        return default if found is None else found


def _fields(section: object) -> frozenset[str]:
    return frozenset(getattr(type(section), "model_fields", ()))
