"""A project's own configuration file: whether it is trusted, and what it may do or would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lemon_core.config import keys
from lemon_core.config.source import TomlFile, dotted, read_toml
from lemon_core.paths import PathSettings, project_config
from lemon_core.tool_policy import ToolPolicy, intersect

if TYPE_CHECKING:
    from lemon_core.config.contributed import Contributed
    from lemon_core.config.layers import LayerName
    from lemon_core.config.trust import Standing

# Where a key or a secret's name may come from that is not the project's.
_OWN: Final[tuple[LayerName, ...]] = ("profile", "global", "environment")
_ABOVE: Final[tuple[LayerName, ...]] = ("control_plane", "environment", "call")


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """The file as it was read, how its directory stands, and what is wrong with the trust."""

    file: TomlFile
    directory: Path
    standing: Standing
    problem: str | None = None

    def notes(self, *, wants_more: bool) -> list[str]:
        """What the owner should know of a file that is not trusted."""
        if not wants_more:
            return []
        import shlex

        command = f"lemon config trust {shlex.quote(str(self.directory))}"
        notes = [] if self.problem is None else [self.problem]
        if self.standing == "changed":
            return [
                *notes,
                f"{self.file.path}: changed since it was trusted, so it is not trusted any more; "
                f"read it again, then: {command}",
            ]
        return [*notes, f"{self.file.path}: to let it set those keys, read it, then: {command}"]


@dataclass(frozen=True, slots=True)
class ProjectSetting:
    """One key that a project's file sets; `safe` ones count without trust. Secrets are hidden."""

    path: str
    value: object
    safe: bool


def read_project(cwd: Path | None, paths: PathSettings) -> ProjectFile | None:
    """The file of the project in `cwd`; None without one. The home is nobody's project."""
    if cwd is None:
        return None
    path = project_config(cwd)
    if path == paths.config_file or _is_same_file(path, paths.config_file):
        return None
    file = read_toml(path)
    if not file.data:
        return ProjectFile(file, cwd, "unknown")
    from lemon_core.config.trust import TrustedProjects, resolved  # most projects have no file

    # The bytes that were read are asked about, not the file, which may be another one by now.
    standing, problem = TrustedProjects(paths).standing(cwd, file.raw)
    return ProjectFile(file, resolved(cwd), standing, problem)


def project_settings(
    directory: Path, paths: PathSettings, contributed: Contributed | None = None
) -> tuple[ProjectSetting, ...]:
    """What the file of `directory` would set once it is trusted, in the file's order.

    Raises `ConfigError` for a file that cannot be used.
    """
    from lemon_core.config.contributed import NOTHING_CONTRIBUTED
    from lemon_core.config.layers import LayerReader, Report, known_profiles, may_set
    from lemon_core.config.load import ConfigError
    from lemon_core.config.redact import shown

    project = read_project(directory, paths)
    if project is None:
        return ()
    model, channels = (contributed or NOTHING_CONTRIBUTED).used_by((project.file.data,))
    report = Report()
    data = LayerReader(model, channels, report).file(project.file)
    if errors := (*report.fatal, *report.errors):
        raise ConfigError(errors)
    profiles = known_profiles(read_toml(paths.config_file).data)
    return tuple(
        ProjectSetting(
            dotted(key.path), shown(key.path, keys.get(data, key.path)), may_set(key, profiles)
        )
        for key in keys.walk(data, model)
        if key.known
    )


def take_policies(project_data: dict[str, object]) -> dict[str, ToolPolicy]:
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


def narrow_policies(merged: dict[str, object], policies: Mapping[str, ToolPolicy]) -> None:
    """Leave each profile what both its own policy and the project's permit."""
    for name, policy in policies.items():
        path = ("profiles", name, "tool_policy")
        own = keys.get(merged, path)
        keys.put(merged, path, policy if own is None else intersect(ToolPolicy.parse(own), policy))


def without_foreign_keys(
    layers: Mapping[LayerName, Mapping[str, object]],
) -> tuple[Mapping[LayerName, Mapping[str, object]], list[str]]:
    """The layers without the credentials that would go to a base URL of the project's file.

    A key belongs to the URL that its owner set, also after the project is trusted: it may name a
    secret of its own beside its URL. Told once for each provider.
    """
    providers = layers.get("project", {}).get("providers")
    changed = dict(layers)
    notes: list[str] = []
    for name in providers if isinstance(providers, Mapping) else ():
        url = ("providers", name, "base_url")
        if keys.get(providers, (name, "base_url")) is None or any(
            keys.get(layers.get(layer, {}), url) is not None for layer in _ABOVE
        ):
            continue
        for layer in _OWN:
            kept = _without_credentials(changed.get(layer, {}), name)
            if kept is not None:
                changed[layer] = kept
                notes.append(
                    f"{dotted(url)}: set by the project's file, so your own key for {name} is not "
                    "sent there; name one beside it (api_key_secret)"
                )
    return changed, list(dict.fromkeys(notes))


def _without_credentials(data: Mapping[str, object], provider: str) -> dict[str, object] | None:
    """`data` without the credentials of the provider's row; None when there are none."""
    from lemon_core.config.redact import is_private

    row = keys.get(data, ("providers", provider))
    secrets = [key for key in row if is_private((key,))] if isinstance(row, Mapping) else []
    if not secrets:
        return None
    copy = keys.copied(data)
    for key in secrets:
        keys.remove(copy, ("providers", provider, key))
    return copy


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
