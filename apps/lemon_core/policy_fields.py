"""Strict reading of a tool policy's fields: every malformed value has a path and a code.

The values come from requests, configuration files, stores and other nodes. A value that is not
understood is refused, because guessing at it could widen what a run may do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypedDict, TypeVar

from lemon_core import command_rules
from lemon_core.errors import LemonError
from lemon_core.tool_classes import TOOL_CLASSES, ToolClass
from lemon_core.tool_profiles import PROFILE_NAMES, ProfileName

ApprovalMode = Literal["always", "dangerous", "never"]

InvalidPolicyCode = Literal[
    "wrong_type",
    "unknown_key",
    "blank_name",
    "unknown_profile",
    "unknown_class",
    "unknown_approval_mode",
    "not_positive",
    "unreadable_command",
]

# The largest integer that every JSON reader keeps exactly.
MAX_JSON_INT: Final = 2**53 - 1

_MODES: Final[Mapping[str, ApprovalMode]] = {
    "always": "always",
    "required": "always",
    "dangerous": "dangerous",
    "never": "never",
    "none": "never",
}


class InvalidToolPolicy(LemonError, ValueError):
    """A tool policy has a value that cannot be understood; nothing of it is used.

    `path` is the place inside the policy (`approvals.bash`, empty for the whole value) and
    `code` says what is wrong there.
    """

    def __init__(self, path: str, code: InvalidPolicyCode, detail: str) -> None:
        super().__init__(f"tool policy{f' at {path}' if path else ''}: {detail}")
        self.code = code  # type: ignore[misc]  # here the code is a fact of the instance
        self.path, self.detail = path, detail


class PolicyFields(TypedDict):
    """Every field of a policy in canonical form."""

    allow: Literal["all"] | tuple[str, ...]
    deny: tuple[str, ...]
    blocked_tools: tuple[str, ...]
    require_approval: tuple[str, ...]
    approvals: Mapping[str, ApprovalMode]
    deny_classes: tuple[ToolClass, ...]
    allowed_commands: tuple[str, ...] | None
    blocked_commands: tuple[str, ...]
    max_file_size: int | None
    sandbox: bool
    no_reply: bool
    profile: ProfileName | None


FIELD_NAMES: Final = tuple(PolicyFields.__annotations__)

_T = TypeVar("_T")


def parse_fields(value: object) -> PolicyFields:
    """The fields that `value` spells, without expanding its profile; raises `InvalidToolPolicy`."""
    if not isinstance(value, Mapping):
        raise InvalidToolPolicy("", "wrong_type", f"expected a table, got {_kind(value)}")
    for key in value:
        if key not in FIELD_NAMES:
            raise InvalidToolPolicy(
                str(key), "unknown_key", f"unknown key; known are {', '.join(FIELD_NAMES)}"
            )

    def read(name: str, parse: Callable[[object, str], _T], default: _T) -> _T:
        return parse(value[name], name) if name in value else default

    return {
        "allow": read("allow", _allow, "all"),
        "deny": read("deny", _names, ()),
        "blocked_tools": read("blocked_tools", _names, ()),
        "require_approval": read("require_approval", _names, ()),
        "approvals": read("approvals", _approvals, {}),
        "deny_classes": read("deny_classes", _classes, ()),
        "allowed_commands": read("allowed_commands", _allowed_commands, None),
        "blocked_commands": read("blocked_commands", _blocked_commands, ()),
        "max_file_size": read("max_file_size", _size, None),
        "sandbox": read("sandbox", _flag, False),
        "no_reply": read("no_reply", _flag, False),
        "profile": read("profile", _profile, None),
    }


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _name(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidToolPolicy(path, "wrong_type", f"expected a name, got {_kind(value)}")
    name = value.strip()
    if not name:
        raise InvalidToolPolicy(path, "blank_name", "a name must not be blank")
    return name


def _items(value: object, path: str) -> list[tuple[str, str]]:
    if not isinstance(value, list | tuple):
        raise InvalidToolPolicy(path, "wrong_type", f"expected a list, got {_kind(value)}")
    places = (f"{path}[{index}]" for index in range(len(value)))
    return [(_name(item, place), place) for item, place in zip(value, places, strict=True)]


def _names(value: object, path: str) -> tuple[str, ...]:
    return tuple(sorted({name for name, _ in _items(value, path)}))


def _allow(value: object, path: str) -> Literal["all"] | tuple[str, ...]:
    if isinstance(value, str):
        if value == "all":
            return "all"
        raise InvalidToolPolicy(path, "wrong_type", f'expected "all" or a list, got {value!r}')
    return _names(value, path)


def _classes(value: object, path: str) -> tuple[ToolClass, ...]:
    given = {name for name, _ in _items(value, path)}
    if unknown := given.difference(TOOL_CLASSES):
        raise InvalidToolPolicy(
            path,
            "unknown_class",
            f"unknown class {min(unknown)!r}; known are {', '.join(TOOL_CLASSES)}",
        )
    return tuple(sorted(known for known in TOOL_CLASSES if known in given))


def _approvals(value: object, path: str) -> dict[str, ApprovalMode]:
    if not isinstance(value, Mapping):
        raise InvalidToolPolicy(path, "wrong_type", f"expected a table, got {_kind(value)}")
    modes: dict[str, ApprovalMode] = {}
    for key, mode in value.items():
        name = _name(key, f"{path}.{key}")
        parsed = _mode(mode, f"{path}.{name}")
        if modes.setdefault(name, parsed) != parsed:
            raise InvalidToolPolicy(
                f"{path}.{name}", "unknown_approval_mode", "two different modes for one tool"
            )
    return dict(sorted(modes.items()))


def _mode(value: object, path: str) -> ApprovalMode:
    if isinstance(value, Mapping):
        for key in value:
            if key != "mode":
                raise InvalidToolPolicy(
                    f"{path}.{key}", "unknown_key", "unknown key; known is mode"
                )
        value = value.get("mode")
        path = f"{path}.mode"
    if isinstance(value, bool):
        return "always" if value else "never"
    mode = _MODES.get(value) if isinstance(value, str) else None
    if mode is None:
        raise InvalidToolPolicy(
            path,
            "unknown_approval_mode",
            f"unknown approval mode {value!r}; known are always, dangerous, never",
        )
    return mode


def _allowed_commands(value: object, path: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(sorted({_leading_words(text, place) for text, place in _items(value, path)}))


def _leading_words(text: str, path: str) -> str:
    try:
        return command_rules.canonical_entry(text)
    except command_rules.UnreadableCommand as exc:
        raise InvalidToolPolicy(path, "unreadable_command", f"{text!r}: {exc}") from exc


def _blocked_commands(value: object, path: str) -> tuple[str, ...]:
    return tuple(sorted({" ".join(text.split()) for text, _ in _items(value, path)}))


def _size(value: object, path: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidToolPolicy(path, "wrong_type", f"expected bytes, got {_kind(value)}")
    if not 0 < value <= MAX_JSON_INT:
        raise InvalidToolPolicy(path, "not_positive", f"expected a positive size, got {value}")
    return value


def _flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidToolPolicy(path, "wrong_type", f"expected true or false, got {_kind(value)}")
    return value


def _profile(value: object, path: str) -> ProfileName | None:
    if value is None:
        return None
    name = _name(value, path)
    for known in PROFILE_NAMES:
        if known == name:
            return known
    raise InvalidToolPolicy(
        path, "unknown_profile", f"unknown profile {name!r}; known are {', '.join(PROFILE_NAMES)}"
    )
