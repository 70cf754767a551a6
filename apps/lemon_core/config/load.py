"""The layers of the configuration, joined into one validated `LemonConfig`.

defaults < defaults of the runtime profile < global file < project file (safe keys only) <
environment < what the caller overrides. `load_validated` refuses what means nothing and names every
problem at once; `load_config` passes it over and is for commands that look at a broken file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lemon_core.config import env, keys
from lemon_core.config.model import DEFAULT_PROFILE, LemonConfig
from lemon_core.config.source import KeyPath, Problem, TomlFile, dotted, read_toml
from lemon_core.config.validate import (
    ENGINE_KEY_MESSAGE,
    unknown_key_message,
    value_problems,
    whole_problems,
)
from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings, project_config
from lemon_core.tool_policy import ToolPolicy, intersect
from lemon_core.util import deep_merge

# A file that a repository brings along must not drown everything else that is printed.
MAX_WARNINGS: Final = 20

_MAX_ROUNDS: Final = 4

# An unknown state of a feature must not switch it on.
_FAIL_CLOSED: Final[Mapping[str, object]] = {"features": "off"}


class ConfigError(LemonError):
    """The configuration cannot be used; `errors` has one line for each reason."""

    code = "config_error"

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration with what should be said about it.

    `environ` is the environment that it was read with: the process's own, gaps filled from `.env`.
    """

    config: LemonConfig
    warnings: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class _Report:
    errors: list[str] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    dropped: list[KeyPath] = field(default_factory=list)


def load_validated(
    cwd: Path | None,
    *,
    paths: PathSettings,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
    profile_defaults: Mapping[str, object] | None = None,
) -> LoadedConfig:
    """The configuration for work in `cwd` (None: no project); raises `ConfigError`.

    `profile_defaults` lie below the global file, `overrides` above everything.
    """
    loaded, report = _load(cwd, paths, environ, overrides or {}, profile_defaults or {})
    if errors := (*report.fatal, *report.errors):
        raise ConfigError(errors)
    return loaded


def load_config(
    cwd: Path | None,
    *,
    paths: PathSettings,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
    profile_defaults: Mapping[str, object] | None = None,
) -> LoadedConfig:
    """What can be used of the configuration; the rest is passed over and stands in the warnings.

    Removed engine keys fail here too, with `ConfigError`.
    """
    loaded, report = _load(cwd, paths, environ, overrides or {}, profile_defaults or {})
    if report.fatal:
        raise ConfigError(tuple(report.fatal))
    return LoadedConfig(loaded.config, (*report.errors, *loaded.warnings), loaded.environ)


def _load(
    cwd: Path | None,
    paths: PathSettings,
    environ: Mapping[str, str],
    overrides: Mapping[str, object],
    profile_defaults: Mapping[str, object],
) -> tuple[LoadedConfig, _Report]:
    report = _Report()
    full_environ, warnings, errors = env.environment(paths, environ)
    report.warnings += warnings
    report.errors += errors
    global_file = read_toml(paths.config_file)
    global_data = _file_layer(global_file, report)
    project_data = _project_layer(cwd, paths, global_data, report)
    env_data = _env_layer(full_environ, global_data, report)
    given = [("profile defaults", profile_defaults), ("override", overrides)]
    lowest, highest = (_given_layer(name, data, report) for name, data in given)
    policies = _take_policies(project_data)
    merged: dict[str, object] = dict(lowest)
    for layer in (global_data, project_data, env_data, highest):
        merged = deep_merge(merged, layer)
    _narrow_policies(merged, policies)
    config = LemonConfig.model_validate(merged)
    for path, message in whole_problems(config, global_data):
        # What seems to be missing may only have been taken out as meaningless.
        if not any(path[:-1] == dropped[: len(path) - 1] for dropped in report.dropped):
            problem = global_file.located(path, message)
            report.errors.append(problem.describe(str(global_file.path)))
    return LoadedConfig(config, tuple(report.warnings), full_environ), report


def _project_layer(
    cwd: Path | None, paths: PathSettings, global_data: Mapping[str, object], report: _Report
) -> dict[str, object]:
    if cwd is None:
        return {}
    path = project_config(cwd)
    if path == paths.config_file or _is_same_file(path, paths.config_file):
        return {}  # the home directory is nobody's project
    known = global_data.get("profiles")
    profiles = {DEFAULT_PROFILE, *(known if isinstance(known, Mapping) else ())}
    return _file_layer(read_toml(path), report, profiles=frozenset(profiles))


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _file_layer(
    file: TomlFile, report: _Report, *, profiles: frozenset[str] | None = None
) -> dict[str, object]:
    """The usable values of a file; `profiles` (those a project may narrow) marks a project's."""
    origin = str(file.path)
    if file.problem is not None:
        report.errors.append(file.problem.describe(origin))
    data = _copy(file.data)
    removed = [file.located(path, ENGINE_KEY_MESSAGE) for path in keys.engine_keys(data)]
    report.fatal += [problem.describe(origin) for problem in removed]
    for problem in removed:
        keys.remove(data, problem.path)
    found = _retired(file, data)
    found += _passed_over(file, data, profiles)
    found.sort(key=lambda problem: problem.line)
    report.warnings += [problem.describe(origin) for problem in found[:MAX_WARNINGS]]
    if len(found) > MAX_WARNINGS:
        report.warnings.append(f"{origin}: {len(found) - MAX_WARNINGS} more keys are ignored")
    if profiles is not None:
        data = _safe_part(data, profiles)
    problems = [file.located(path, message) for path, message in _drop_meaningless(data)]
    report.dropped += [problem.path for problem in problems]
    problems.sort(key=lambda problem: problem.line)
    report.errors += [problem.describe(origin) for problem in problems]
    return data


def _retired(file: TomlFile, data: dict[str, object]) -> list[Problem]:
    found = []
    for path, advice in keys.RETIRED_SECTIONS.items():
        if keys.get(data, path) is not None:
            found.append(file.located(path, f"retired section, ignored; {advice}"))
            keys.remove(data, path)
    return found


def _passed_over(
    file: TomlFile, data: Mapping[str, object], profiles: frozenset[str] | None
) -> list[Problem]:
    """Unknown keys, and in a project's file (`profiles` given) those that it may not set."""
    found = []
    for key in keys.walk(data, LemonConfig):
        if not key.known:
            message = unknown_key_message(key.path, key.suggestions)
        elif profiles is None or _may_set(key, profiles):
            continue
        elif key.safe:
            message = "a project's file cannot add a profile, ignored"
        else:
            message = "a project's file may not set this, ignored; the global file may"
        found.append(file.located(key.path, message))
    return found


def _may_set(key: keys.Key, profiles: frozenset[str]) -> bool:
    return key.known and key.safe and (key.path[0] != "profiles" or key.path[1] in profiles)


def _safe_part(data: Mapping[str, object], profiles: frozenset[str]) -> dict[str, object]:
    """What a project's file may set, and nothing else: not even an empty row of its making."""
    safe: dict[str, object] = {}
    for key in keys.walk(data, LemonConfig):
        if _may_set(key, profiles):
            keys.put(safe, key.path, keys.get(data, key.path))
    return safe


def _drop_meaningless(data: dict[str, object]) -> list[tuple[KeyPath, str]]:
    """Take out of `data` whatever has no meaning, and tell what that was."""
    found: list[tuple[KeyPath, str]] = []
    # One round is enough unless what is left cannot stand without what was taken out.
    for _ in range(_MAX_ROUNDS):
        problems = value_problems(data)
        if not problems:
            return found
        found += problems
        for path, _message in problems:
            keys.remove(data, path)
            if path[0] in _FAIL_CLOSED and len(path) > 1:
                keys.put(data, path, _FAIL_CLOSED[str(path[0])])
    data.clear()
    return found


def _env_layer(
    environ: Mapping[str, str], global_data: Mapping[str, object], report: _Report
) -> dict[str, object]:
    providers = global_data.get("providers")
    rows = [str(name) for name in providers] if isinstance(providers, Mapping) else []
    found, warnings = env.settings(environ, rows)
    report.warnings += warnings
    data = env.as_tables(found)
    names = {setting.path: setting.variable for setting in found}
    for path, message in _drop_meaningless(data):
        effect = f"read as {_FAIL_CLOSED[str(path[0])]}" if path[0] in _FAIL_CLOSED else "ignored"
        report.warnings.append(f"{names.get(path, dotted(path))}: {message}; {effect}")
    return data


def _given_layer(name: str, given: Mapping[str, object], report: _Report) -> dict[str, object]:
    data = _copy(given)
    for path, message in _drop_meaningless(data):
        report.errors.append(Problem(path, message).describe(name))
    return data


def _take_policies(project_data: dict[str, object]) -> dict[str, ToolPolicy]:
    """The policy of each profile in the project's data, where merging would let it replace."""
    profiles = project_data.get("profiles")
    taken: dict[str, ToolPolicy] = {}
    for name in profiles if isinstance(profiles, Mapping) else ():
        path = ("profiles", name, "tool_policy")
        written = keys.get(project_data, path)
        if written is not None:
            taken[name] = ToolPolicy.parse(written)
            keys.remove(project_data, path)
    return taken


def _narrow_policies(merged: dict[str, object], policies: Mapping[str, ToolPolicy]) -> None:
    """Leave each profile what both its own policy and the project's permit."""
    for name, policy in policies.items():
        path = ("profiles", name, "tool_policy")
        own = keys.get(merged, path)
        keys.put(merged, path, policy if own is None else intersect(ToolPolicy.parse(own), policy))


def _copy(data: Mapping[str, object]) -> dict[str, object]:
    """Tables copied at every depth, so that taking a key out changes nobody else's."""
    return {
        name: _copy(value) if isinstance(value, Mapping) else value for name, value in data.items()
    }
