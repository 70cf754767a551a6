"""What an extension offers, checked part by part: what is wrong is told, the rest still counts."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coding_agent.extensions.api import HOOKS, ExtensionTool, HookName, Provider
from lemon_agent import AgentTool
from lemon_core.tool_classes import TOOL_CLASSES, ToolClass

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_TOOL_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("events",),
    "memory": ("put", "search"),
}


Hook = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about an extension that is wrong; `callback` is empty when it was not loaded."""

    extension: str
    path: str
    callback: str
    message: str


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of an extension; `classes` None means that it did not say any."""

    extension: str
    tool: AgentTool
    classes: frozenset[ToolClass] | None


class Checker:
    """Calls what an extension has, and notes what does not give what it should."""

    def __init__(self, extension: str, path: str) -> None:
        self._extension, self._path = extension, path
        self.problems: list[Problem] = []

    def fault(self, callback: str, message: str) -> None:
        self.problems.append(Problem(self._extension, self._path, callback, message))

    def called(self, value: object, callback: str, *args: object) -> object:
        """What the callback gives; None when it is not there or fails."""
        method = getattr(value, callback, None)
        if method is None:
            return None
        if not callable(method):
            self.fault(callback, "is not a function")
            return None
        try:
            found: object = method(*args)
        except (Exception, SystemExit) as exc:  # foreign code may raise anything
            self.fault(callback, f"raised {type(exc).__name__}: {exc}")
            return None
        if inspect.iscoroutine(found):
            found.close()
            self.fault(callback, "is async, and must be a plain function")
            return None
        return found

    def sequence(self, value: object, callback: str, *args: object) -> Sequence[object]:
        found = self.called(value, callback, *args)
        if found is None:
            return ()
        if isinstance(found, list | tuple):
            return found
        self.fault(callback, f"gave {type(found).__name__} where a list is due")
        return ()

    def tool(self, item: object) -> OfferedTool | None:
        tool, classes = (
            (item.tool, item.classes) if isinstance(item, ExtensionTool) else (item, None)
        )
        given: Any = tool
        if not isinstance(tool, AgentTool):
            self.fault("tools", f"gave {type(given).__name__} where a tool is due")
        elif not isinstance(given.name, str) or _TOOL_NAME.fullmatch(given.name) is None:
            self.fault("tools", f"{given.name!r} is no name of a tool")
        elif not isinstance(given.description, str) or not isinstance(given.parameters, dict):
            self.fault("tools", f"{tool.name} lacks its description or its parameters")
        elif (fault := schema_fault(given.parameters)) is not None:
            self.fault("tools", f"{tool.name}: its parameters {fault}")
        elif not callable(given.execute):
            self.fault("tools", f"{tool.name} has nothing to execute")
        elif classes is not None and not set(classes) <= set(TOOL_CLASSES):
            self.fault("tools", f"{tool.name} has a class that there is not: {sorted(classes)}")
        else:
            return OfferedTool(
                self._extension, tool, None if classes is None else frozenset(classes)
            )
        return None

    def hooks(self, value: object) -> dict[HookName, Hook]:
        found = self.called(value, "hooks")
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            self.fault("hooks", f"gave {type(found).__name__} where a mapping is due")
            return {}
        for name in found:
            if name not in HOOKS:
                self.fault("hooks", f"there is no hook {name!r}; there are: {', '.join(HOOKS)}")
            elif not callable(found[name]):
                self.fault("hooks", f"{name} is not a function")
        return {name: found[name] for name in HOOKS if callable(found.get(name))}

    def words(self, value: object) -> tuple[str, ...]:
        found = self.sequence(value, "capabilities")
        words = tuple(word for word in found if isinstance(word, str) and word.strip())
        if len(words) < len(found):
            self.fault("capabilities", "gave something that is no word")
        return words

    def schema(self, value: object) -> Mapping[str, Any] | None:
        found = self.called(value, "config_schema")
        if found is None or (isinstance(found, dict) and all(isinstance(k, str) for k in found)):
            return found
        self.fault("config_schema", f"gave {type(found).__name__} where a JSON Schema is due")
        return None

    def providers(self, value: object) -> tuple[Provider, ...]:
        found: list[Provider] = []
        for item in self.sequence(value, "providers"):
            if isinstance(item, Provider) and _is_sound(item):
                found.append(item)
                continue
            what = f"{item.type} {item.name}" if isinstance(item, Provider) else type(item).__name__
            self.fault("providers", f"{what} is no provider, or lacks what one of its type has")
        return tuple(found)


def _is_sound(provider: Provider) -> bool:
    given: Any = provider  # another one's code made it, so its fields may hold anything
    if not isinstance(given.name, str) or NAME.fullmatch(given.name) is None:
        return False
    methods = _METHODS.get(given.type) if isinstance(given.type, str) else None
    if methods is None:
        return False
    return all(callable(getattr(given.implementation, method, None)) for method in methods)


def schema_fault(parameters: Mapping[str, Any]) -> str | None:
    """What is wrong with a schema: with one that is refused a provider refuses every tool."""
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        return f"are not JSON ({exc})"
    if parameters.get("type") != "object":
        return 'are no schema of "type": "object"'
    properties = parameters.get("properties", {})
    is_sound = isinstance(properties, dict) and all(
        isinstance(v, dict) for v in properties.values()
    )
    return None if is_sound else "have properties that are no schemas"
