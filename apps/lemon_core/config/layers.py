"""The layers of the configuration, each for itself: what it may say, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from lemon_core.config import env, keys
from lemon_core.config.contributed import Channels
from lemon_core.config.model import DEFAULT_PROFILE, LemonConfig
from lemon_core.config.retired import migrated, notes
from lemon_core.config.source import KeyPath, Problem, TomlFile, dotted, parse_dotted
from lemon_core.config.validate import ENGINE_KEY_MESSAGE, unknown_key_message, value_problems

LayerName = Literal[
    "default", "profile", "global", "project", "control_plane", "environment", "call"
]
# Later layers win.
ORDER: Final[tuple[LayerName, ...]] = (
    "profile",
    "global",
    "project",
    "control_plane",
    "environment",
    "call",
)

# A file that a repository brings along must not drown everything else that is printed.
MAX_WARNINGS: Final = 20
_MAX_ROUNDS: Final = 4

# What must not be switched on, or be wider, by a value that means nothing.
_FAIL_CLOSED: Final[Mapping[tuple[str, ...], object]] = {
    ("features",): "off",
    ("runtime", "tools", "execute_code", "kernel_mode"): "per_call",
}
# Used before the store is open, and so before anything that it holds can be read.
_BEFORE_THE_STORE: Final = frozenset({"store", "logging"})
NOT_FOR_OVERRIDES: Final = (
    "cannot be set in the store, which is opened after this is used: use the file or a variable"
)


@dataclass(slots=True)
class Report:
    """What a load has to say; `fatal` stops every load, `errors` the validated one."""

    errors: list[str] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    dropped: list[KeyPath] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LayerReader:
    """Reads layers along one model; what it finds goes to `report`."""

    model: type[LemonConfig]
    channels: Channels
    report: Report

    def file(self, file: TomlFile, *, profiles: frozenset[str] | None = None) -> dict[str, object]:
        """The usable values of a file.

        `profiles` marks an untrusted project's file and names the profiles that it may narrow.
        """
        origin, report = str(file.path), self.report
        if file.problem is not None:
            report.errors.append(file.problem.describe(origin))
        data = keys.copied(file.data)
        removed = [file.located(path, ENGINE_KEY_MESSAGE) for path in keys.engine_keys(data)]
        report.fatal += [problem.describe(origin) for problem in removed]
        for problem in removed:
            keys.remove(data, problem.path)
        renamed = migrated(data)
        data = renamed.data
        retired = [file.located(path, message) for path, message in notes(renamed)]
        file = replace(file, moved={new: old for old, new in renamed.moved.items()})
        found = [*retired, *self._passed_over(file, data, profiles)]
        found.sort(key=lambda problem: problem.line)
        report.warnings += [problem.describe(origin) for problem in found[:MAX_WARNINGS]]
        if len(found) > MAX_WARNINGS:
            report.warnings.append(f"{origin}: {len(found) - MAX_WARNINGS} more keys are ignored")
        if profiles is not None:
            data = self._safe_part(data, profiles)
        problems = [file.located(path, message) for path, message in self._drop_meaningless(data)]
        report.dropped += [problem.path for problem in problems]
        problems.sort(key=lambda problem: problem.line)
        report.errors += [problem.describe(origin) for problem in problems]
        return data

    def environment(self, found: Iterable[env.Setting]) -> dict[str, object]:
        """What the variables say; one that means nothing leaves the layer below."""
        found = list(found)
        data = env.as_tables(found)
        names = {setting.path: setting.variable for setting in found}
        for path, message in self._drop_meaningless(data):
            closed = _fail_closed(path)
            effect = "ignored" if closed is None else f"read as {closed}"
            self.report.warnings.append(f"{names.get(path, dotted(path))}: {message}; {effect}")
        return data

    def given(self, name: str, given: Mapping[str, object]) -> dict[str, object]:
        """What code passed in; a meaningless value there is an error."""
        data = keys.copied(given)
        for path, message in self._drop_meaningless(data):
            self.report.errors.append(Problem(path, message).describe(name))
        return data

    def stored(self, overrides: Mapping[str, object]) -> dict[str, object]:
        """What the control plane stored, by dotted path; whatever means nothing is passed over."""
        data: dict[str, object] = {}
        for text in sorted(overrides):
            problem = override_problem(self.model, self.channels, text, overrides[text])
            if problem is None:
                keys.put(data, parse_dotted(text), overrides[text])
            else:
                self.report.warnings.append(f"stored override {text}: {problem}; ignored")
        return data

    def is_untrusted_power(self, data: Mapping[str, object], profiles: frozenset[str]) -> bool:
        """True when a project's file holds a known key that only trust lets it set."""
        return any(key.known and not may_set(key, profiles) for key in keys.walk(data, self.model))

    def _passed_over(
        self, file: TomlFile, data: Mapping[str, object], profiles: frozenset[str] | None
    ) -> list[Problem]:
        """Unknown keys, and in an untrusted project's file those that it may not set."""
        found = []
        for key in keys.walk(data, self.model):
            if not key.known:
                message = unknown_key_message(key.path, key.suggestions)
            elif profiles is None or may_set(key, profiles):
                continue
            elif key.safe:
                message = "a project's file cannot add a profile, ignored"
            else:
                message = "a project's file may not set this, ignored; the global file may"
            found.append(file.located(key.path, message))
        return found

    def _safe_part(self, data: Mapping[str, object], profiles: frozenset[str]) -> dict[str, object]:
        """What a project's file may set, and nothing else: not even an empty row of its making."""
        safe: dict[str, object] = {}
        for key in keys.walk(data, self.model):
            if may_set(key, profiles):
                keys.put(safe, key.path, keys.get(data, key.path))
        return safe

    def _drop_meaningless(self, data: dict[str, object]) -> list[tuple[KeyPath, str]]:
        """Take out of `data` whatever has no meaning, and tell what that was."""
        found: list[tuple[KeyPath, str]] = []
        # One round is enough unless what is left cannot stand without what was taken out.
        for _ in range(_MAX_ROUNDS):
            problems = value_problems(data, self.model, self.channels)
            if not problems:
                return found
            found += problems
            for path, _message in problems:
                keys.remove(data, path)
                closed = _fail_closed(path)
                if closed is not None:
                    keys.put(data, path, closed)
        data.clear()
        return found


def override_problem(
    model: type[LemonConfig], channels: Channels, text: str, value: object
) -> str | None:
    """What keeps the dotted path `text` from being overridden with `value`; None when nothing."""
    try:
        path = parse_dotted(text)
    except ValueError as exc:
        return str(exc)
    if path[0] in _BEFORE_THE_STORE:
        return NOT_FOR_OVERRIDES
    if value is None:
        return "must have a value; without one, delete the override"
    data: dict[str, object] = {}
    keys.put(data, path, keys.copied(value) if isinstance(value, Mapping) else value)
    if list(keys.engine_keys(data)):
        return ENGINE_KEY_MESSAGE
    for key in keys.walk(data, model):
        if not key.known:
            message = unknown_key_message(key.path, key.suggestions).replace(", ignored", "")
            return message if key.path == path else f"{dotted(key.path)}: {message}"
    for place, message in value_problems(data, model, channels):
        return message if place == path else f"{dotted(place)}: {message}"
    return None


def known_profiles(global_data: Mapping[str, object]) -> frozenset[str]:
    """The profiles whose policy an untrusted project may narrow."""
    known = global_data.get("profiles")
    return frozenset({DEFAULT_PROFILE, *(known if isinstance(known, Mapping) else ())})


def may_set(key: keys.Key, profiles: frozenset[str]) -> bool:
    """True when an untrusted project's file may set `key`."""
    return key.known and key.safe and (key.path[0] != "profiles" or key.path[1] in profiles)


def _fail_closed(path: KeyPath) -> object:
    """What a meaningless value at `path` is read as; None leaves the layer below."""
    for prefix, closed in _FAIL_CLOSED.items():
        if (path == prefix and len(prefix) > 1) or path[:-1] == prefix:
            return closed
    return None
