"""The layers of the configuration, joined into one validated `LemonConfig`.

defaults < defaults of the runtime profile < global file < project file (safe keys, or all of a
trusted one) < overrides that the control plane stored < environment < what the caller overrides.
`load_validated` refuses what means nothing and names every problem at once; `load_config` passes it
over and is for commands that look at a broken file. The stored overrides come later, with
`with_stored`: the store is opened with the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lemon_core.config import env, keys
from lemon_core.config.channels import resolve_channels
from lemon_core.config.contributed import NOTHING_CONTRIBUTED, Channels, Contributed
from lemon_core.config.layers import ORDER, LayerName, LayerReader, Report, known_profiles
from lemon_core.config.model import LemonConfig
from lemon_core.config.project import (
    ProjectFile,
    narrow_policies,
    read_project,
    take_policies,
    without_foreign_keys,
)
from lemon_core.config.retired import migrated
from lemon_core.config.source import KeyPath, TomlFile, dotted, parse_dotted, read_toml
from lemon_core.config.validate import whole_problems
from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings
from lemon_core.tool_policy import ToolPolicy
from lemon_core.util import deep_merge


class ConfigError(LemonError):
    """The configuration cannot be used; `errors` has one line for each reason."""

    code = "config_error"

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Parts:
    """What a configuration was joined from, for joining it again and for telling where from."""

    layers: Mapping[LayerName, Mapping[str, object]] = field(default_factory=dict)
    policies: Mapping[str, ToolPolicy] = field(default_factory=dict)
    global_file: TomlFile | None = None
    contributed: Contributed = NOTHING_CONTRIBUTED


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration with what should be said about it.

    `environ` is the environment that it was read with: the process's own, gaps filled from `.env`.
    """

    config: LemonConfig
    warnings: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    parts: Parts = field(default_factory=Parts, repr=False, compare=False)


def load_validated(
    cwd: Path | None,
    *,
    paths: PathSettings,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
    profile_defaults: Mapping[str, object] | None = None,
    contributed: Contributed = NOTHING_CONTRIBUTED,
) -> LoadedConfig:
    """The configuration for work in `cwd` (None: no project); raises `ConfigError`.

    `profile_defaults` lie below the global file, `overrides` above everything; `contributed` are
    the sections of apps.
    """
    given = _Given(overrides or {}, profile_defaults or {}, contributed)
    loaded, report = _load(cwd, paths, environ, given)
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
    contributed: Contributed = NOTHING_CONTRIBUTED,
) -> LoadedConfig:
    """What can be used of the configuration; the rest is passed over and stands in the warnings.

    Removed engine keys fail here too, with `ConfigError`.
    """
    given = _Given(overrides or {}, profile_defaults or {}, contributed)
    loaded, report = _load(cwd, paths, environ, given)
    if report.fatal:
        raise ConfigError(tuple(report.fatal))
    return replace(loaded, warnings=(*report.errors, *loaded.warnings))


def inspect_config(
    cwd: Path | None,
    *,
    paths: PathSettings,
    environ: Mapping[str, str],
    profile_defaults: Mapping[str, object] | None = None,
    contributed: Contributed = NOTHING_CONTRIBUTED,
) -> tuple[LoadedConfig, tuple[str, ...]]:
    """What can be used of the configuration, and every error in it, removed keys included.

    Raises nothing: it is for whoever looks at what is broken.
    """
    given = _Given({}, profile_defaults or {}, contributed)
    loaded, report = _load(cwd, paths, environ, given)
    return loaded, (*report.fatal, *report.errors)


def with_stored(loaded: LoadedConfig, stored: Mapping[str, object]) -> LoadedConfig:
    """`loaded` with the overrides that the control plane stored, by dotted path.

    An override that means nothing, or that does not fit the rest, is warned about and ignored.
    """
    parts = loaded.parts
    kept = dict(stored)
    report = Report()
    while True:
        tables = tables_of(kept)
        model, channels = parts.contributed.used_by((*parts.layers.values(), tables))
        data = LayerReader(model, channels, report).stored(kept)
        layers = {**parts.layers, "control_plane": data}
        config, notes = _join(model, channels, layers, parts.policies)
        misfits = _misfits(config, loaded, parts, data)
        if not misfits:
            break
        report = Report(warnings=[f"stored overrides: {line}; ignored" for _, line in misfits])
        heads = {path[0] for path, _ in misfits}
        kept = {text: kept[text] for text in kept if _head(text) not in heads}
    warnings = tuple(dict.fromkeys((*loaded.warnings, *report.warnings, *notes)))
    return replace(loaded, config=config, warnings=warnings, parts=replace(parts, layers=layers))


@dataclass(frozen=True, slots=True)
class _Given:
    overrides: Mapping[str, object]
    profile_defaults: Mapping[str, object]
    contributed: Contributed


def _load(
    cwd: Path | None, paths: PathSettings, environ: Mapping[str, str], given: _Given
) -> tuple[LoadedConfig, Report]:
    report = Report()
    full_environ, warnings, errors = env.environment(paths, environ)
    report.warnings += warnings
    report.errors += errors
    global_file = read_toml(paths.config_file)
    project = read_project(cwd, paths)
    found, unread = _variables(full_environ, global_file.data, given.contributed)
    datas = (
        migrated(global_file.data).data,
        migrated(project.file.data).data if project else {},
        env.as_tables(found),
        given.profile_defaults,
        given.overrides,
    )
    model, channels = given.contributed.used_by(datas)
    reader = LayerReader(model, channels, report)
    global_data = reader.file(global_file)
    project_data = _project_layer(project, reader, global_data)
    report.warnings += unread
    layers: dict[LayerName, Mapping[str, object]] = {
        "environment": reader.environment(found),
        "profile": reader.given("profile defaults", given.profile_defaults),
        "call": reader.given("override", given.overrides),
        "global": global_data,
        "project": project_data,
    }
    policies = take_policies(project_data)
    config, notes = _join(model, channels, layers, policies)
    report.warnings += notes
    for path, message in whole_problems(config, global_data):
        # What seems to be missing may only have been taken out as meaningless.
        if not any(path[:-1] == dropped[: len(path) - 1] for dropped in report.dropped):
            problem = global_file.located(path, message)
            report.errors.append(problem.describe(str(global_file.path)))
    parts = Parts(layers, policies, global_file, given.contributed)
    return LoadedConfig(config, tuple(report.warnings), full_environ, parts), report


def _variables(
    environ: Mapping[str, str], global_data: Mapping[str, object], contributed: Contributed
) -> tuple[list[env.Setting], list[str]]:
    providers = global_data.get("providers")
    rows = [str(name) for name in providers] if isinstance(providers, Mapping) else []
    return env.settings(environ, rows, contributed.variables())


def _project_layer(
    project: ProjectFile | None, reader: LayerReader, global_data: Mapping[str, object]
) -> dict[str, object]:
    if project is None:
        return {}
    if project.standing == "trusted":
        return reader.file(project.file)
    profiles = known_profiles(global_data)
    data = reader.file(project.file, profiles=profiles)
    reader.report.warnings += project.notes(
        wants_more=reader.is_untrusted_power(project.file.data, profiles)
    )
    return data


def _join(
    model: type[LemonConfig],
    channels: Channels,
    layers: Mapping[LayerName, Mapping[str, object]],
    policies: Mapping[str, ToolPolicy],
) -> tuple[LemonConfig, list[str]]:
    """One configuration out of the layers, and what should be said about how they met."""
    usable, notes = without_foreign_keys(layers)
    merged: dict[str, object] = {}
    for name in ORDER:
        merged = deep_merge(merged, usable.get(name, {}))
    merged = keys.copied(merged)
    narrow_policies(merged, policies)
    resolve_channels(channels, merged)
    return model.model_validate(merged), notes


def _misfits(
    config: LemonConfig, before: LoadedConfig, parts: Parts, data: Mapping[str, object]
) -> list[tuple[KeyPath, str]]:
    """What does not fit together because of the stored `data`, as (path, line)."""
    written = parts.layers.get("global", {})
    known = whole_problems(before.config, written)
    return [
        (path, f"{dotted(path)}: {message}")
        for path, message in whole_problems(config, written)
        if (path, message) not in known and path[0] in data
    ]


def tables_of(stored: Mapping[str, object]) -> dict[str, object]:
    """The values by dotted path as the tables that a file would hold."""
    data: dict[str, object] = {}
    for text in stored:
        try:
            keys.put(data, parse_dotted(text), stored[text])
        except ValueError:
            continue  # the reader tells
    return data


def _head(text: str) -> str:
    try:
        return parse_dotted(text)[0]
    except ValueError:
        return ""
