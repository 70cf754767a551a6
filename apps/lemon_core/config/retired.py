"""Sections of earlier versions, and where their keys are now.

Only the values are moved here, which is how a file that cannot be rewritten is read; `migrate`
rewrites the text of one that can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lemon_core.config import keys
from lemon_core.config.source import KeyPath, dotted

# In [agent] these chose the default model; everything else there said how agents run.
_DEFAULTS: Final[Mapping[str, str]] = {
    "provider": "provider",
    "model": "model",
    "thinking_level": "thinking_level",
    "default_provider": "provider",
    "default_model": "model",
    "default_thinking_level": "thinking_level",
}


@dataclass(slots=True)
class Migrated:
    """A file's values with the retired sections moved.

    `moved` maps each old path to its new one, in the order of the file; `dropped` have no
    successor; `shadowed` maps old paths to the new ones that had a value already, which wins;
    `staying` are removed engine keys, which are nobody's to move.
    """

    data: dict[str, object]
    moved: dict[KeyPath, KeyPath] = field(default_factory=dict)
    dropped: list[KeyPath] = field(default_factory=list)
    shadowed: dict[KeyPath, KeyPath] = field(default_factory=dict)
    staying: list[KeyPath] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether there was anything retired."""
        return bool(self.moved or self.dropped or self.shadowed)


def is_retired(path: KeyPath) -> bool:
    """Whether `path` is a retired section or in one."""
    return any(path[: len(section)] == section for section in keys.RETIRED_SECTIONS)


def new_path(path: KeyPath) -> KeyPath | None:
    """Where a key of a retired section is now; None for one that has no successor.

    `("agent",)` itself has two successors and is no key; it reads as `runtime`.
    """
    match path:
        case ("runtime", "cli", *_) | ("agent", "cli", *_):
            return None
        case ("agent", str(name)) if name in _DEFAULTS:
            return ("defaults", _DEFAULTS[name])
        case ("agent", *rest):
            return ("runtime", *rest)
        case ("agents", *rest):
            return ("profiles", *rest)
        case ("tools", *rest):
            return ("runtime", "tools", *rest)
    return path


def migrated(data: Mapping[str, object]) -> Migrated:
    """`data` with its retired sections moved; what is set in the new place stays."""
    result = Migrated(keys.copied(data))
    leaves = list(_leaves(data))
    for path, _value in leaves:
        keys.remove(result.data, path)
    for section in keys.RETIRED_SECTIONS:
        keys.remove(result.data, section)
    for path, value in leaves:
        target = new_path(path)
        if _has_engine_key(path, value):
            result.staying.append(path)
            keys.put(result.data, path, value)
        elif target is None:
            result.dropped.append(path)
        elif value == {}:
            _put_empty(result, path, target)
        elif _is_free(result.data, target):
            result.moved[path] = target
            keys.put(result.data, target, value)
        else:
            result.shadowed[path] = target
    return result


def notes(result: Migrated) -> list[tuple[KeyPath, str]]:
    """What should be said about the retired parts of a file that is read as it is."""
    found: list[tuple[KeyPath, str]] = []
    old = [*result.moved, *result.dropped, *result.shadowed]
    for section, advice in keys.RETIRED_SECTIONS.items():
        if any(path[: len(section)] == section for path in old):
            how = "ignored" if section == ("runtime", "cli") else "read under its new name"
            found.append((section, f"retired section, {how}; {advice}"))
    found += [(path, f"ignored, {dotted(new)} is set too") for path, new in result.shadowed.items()]
    return found


def _leaves(
    data: Mapping[str, object], at: tuple[str, ...] = ()
) -> Iterator[tuple[KeyPath, object]]:
    """The values of the retired sections, and their empty tables."""
    for name, value in data.items():
        path = (*at, name)
        if is_retired(path):
            yield from _inside(value, path)
        elif isinstance(value, Mapping) and any(path == s[:1] for s in keys.RETIRED_SECTIONS):
            yield from _leaves(value, path)


def _inside(value: object, path: tuple[str, ...]) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, Mapping) and value and new_path(path) is not None:
        for name, inner in value.items():
            yield from _inside(inner, (*path, name))
    else:
        yield path, value


def _has_engine_key(path: KeyPath, value: object) -> bool:
    data: dict[str, object] = {}
    keys.put(data, path, value)
    return any(True for _ in keys.engine_keys(data))


def _put_empty(result: Migrated, path: KeyPath, target: KeyPath) -> None:
    if keys.get(result.data, target) is None and len(target) > 1 and _is_free(result.data, target):
        keys.put(result.data, target, {})
    result.moved[path] = target


def _is_free(data: Mapping[str, object], path: KeyPath) -> bool:
    """Whether nothing stands at `path`, nor a value where a table of it would be."""
    if keys.get(data, path) is not None:
        return False
    above = (keys.get(data, path[:end]) for end in range(1, len(path)))
    return all(found is None or isinstance(found, Mapping) for found in above)
