"""Where each value of a configuration comes from, and what it hides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lemon_core.config import keys
from lemon_core.config.layers import ORDER, LayerName
from lemon_core.config.load import LoadedConfig
from lemon_core.config.project import without_foreign_keys
from lemon_core.config.redact import shown
from lemon_core.config.source import KeyPath, dotted

Layers = Mapping[LayerName, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Shadowed:
    """A value that a lower layer set and that does not count."""

    layer: LayerName
    value: object


@dataclass(frozen=True, slots=True)
class Origin:
    """A value as it counts, the layer that set it, and what is shadowed by it, nearest first.

    Credentials are hidden. `default` is core's own value. A profile's tool policy that a project
    narrows is told as the project's.
    """

    value: object
    layer: LayerName
    shadowed: tuple[Shadowed, ...] = ()


def explain(loaded: LoadedConfig) -> dict[str, Origin]:
    """The origin of every value in `loaded`, by dotted path and in the order of the model."""
    dump = loaded.config.model_dump(mode="json")
    layers, _notes = without_foreign_keys(loaded.parts.layers)
    found: dict[str, Origin] = {}
    for key in keys.walk(dump, type(loaded.config)):
        whole = _whole(key.path)
        # A list is replaced, never merged, so it is one value however many rows it has.
        found.setdefault(dotted(whole), _origin(loaded, layers, whole, keys.get(dump, whole)))
    return found


def overridden(loaded: LoadedConfig) -> dict[str, LayerName]:
    """The stored overrides that do not count, and which layer shadows each of them."""
    return {
        path: origin.layer
        for path, origin in explain(loaded).items()
        if any(lower.layer == "control_plane" for lower in origin.shadowed)
    }


def _origin(loaded: LoadedConfig, layers: Layers, path: KeyPath, value: object) -> Origin:
    setting = [(name, keys.get(layers.get(name, {}), path)) for name in ORDER]
    settings = [(name, lower) for name, lower in reversed(setting) if lower is not None]
    if _is_narrowed(loaded, path):
        settings = [("project", value), *settings]
    if not settings:
        return Origin(shown(path, value), "default")
    (layer, _), *lower = settings
    return Origin(
        shown(path, value),
        layer,
        tuple(Shadowed(name, shown(path, other)) for name, other in lower),
    )


def _is_narrowed(loaded: LoadedConfig, path: KeyPath) -> bool:
    is_policy = len(path) == 3 and path[0] == "profiles" and path[2] == "tool_policy"
    return is_policy and path[1] in loaded.parts.policies


def _whole(path: KeyPath) -> KeyPath:
    for index, part in enumerate(path):
        if isinstance(part, int):
            return path[:index]
    return path
