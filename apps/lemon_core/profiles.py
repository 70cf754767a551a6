"""What a runtime consists of, as data: a profile names its parts, and nothing is imported until
used.

A profile is a TOML file. Its source form lists the apps whose commands it offers (`command_apps`);
the built form carries the commands themselves, so that help needs no foreign import.
"""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from lemon_core.commands import CommandSpec
from lemon_core.errors import LemonError

PROFILE_VARIABLE: Final = "LEMON_RUNTIME_PROFILE"
_KEYS: Final = frozenset(
    {
        "name",
        "description",
        "components",
        "executor",
        "libraries",
        "config",
        "command_apps",
        "commands",
        "doctor_checks",
        "config_sections",
        "gateway_channels",
        "env_declarations",
    }
)


class ProfileError(LemonError):
    """A profile that cannot be used, with the file and the reason."""

    code = "invalid_profile"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = where, reason


@dataclass(frozen=True, slots=True)
class Profile:
    """The parts of a runtime; all of them are dotted paths (`package.module:attribute`).

    `components` start in order. `libraries` ship with it, importable and not started. `config` are
    configuration defaults below those of the global file. `commands` are by app. `doctor_checks`
    are what the apps add to the doctor's own looks (`<app>.doctor:CHECKS`). `config_sections` (the
    section's path and its model), `gateway_channels` and `env_declarations` are what they add to
    the configuration, which is loaded before any of them starts.
    """

    name: str
    description: str = ""
    components: tuple[str, ...] = ()
    executor: str | None = None
    libraries: tuple[str, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict)
    command_apps: tuple[str, ...] = ()
    commands: Mapping[str, tuple[CommandSpec, ...]] = field(default_factory=dict)
    doctor_checks: tuple[str, ...] = ()
    config_sections: Mapping[str, str] = field(default_factory=dict)
    gateway_channels: tuple[str, ...] = ()
    env_declarations: tuple[str, ...] = ()

    def find_command(self, word: str) -> CommandSpec | None:
        """The command that `word` calls."""
        for specs in self.commands.values():
            for spec in specs:
                if spec.name == word:
                    return spec
        return None


def app_of(path: str) -> str:
    """The app that a dotted path belongs to: `lemon_gateway` for `lemon_gateway.app:component`."""
    return path.partition(":")[0].partition(".")[0]


def load_target(path: str) -> object:
    """The object behind `package.module:attribute`.

    Raises ImportError, AttributeError, and ValueError for text of another form.
    """
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise ValueError(f"not a dotted path with an attribute: {path!r}")
    return getattr(importlib.import_module(module), attribute)


def load_profile(path: Path) -> Profile:
    """The profile in the TOML file `path`; raises `ProfileError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ProfileError(str(path), f"cannot be read ({exc.strerror})") from exc
    return parse_profile(text, where=str(path))


def parse_profile(text: str, *, where: str) -> Profile:
    """The profile in TOML `text`; raises `ProfileError`."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ProfileError(where, f"is not valid TOML: {exc}") from exc
    if unknown := sorted(raw.keys() - _KEYS):
        raise ProfileError(where, f"unknown key {unknown[0]!r}")
    name, executor = raw.get("name"), raw.get("executor")
    if not isinstance(name, str) or not name:
        raise ProfileError(where, "name is missing")
    if executor is not None and not isinstance(executor, str):
        raise ProfileError(where, "executor is not text")
    return Profile(
        name=name,
        description=str(raw.get("description", "")),
        components=_texts(raw, "components", where),
        executor=executor,
        libraries=_texts(raw, "libraries", where),
        config=_table(raw, "config", where),
        command_apps=_texts(raw, "command_apps", where),
        commands=_commands(raw.get("commands", []), where),
        doctor_checks=_texts(raw, "doctor_checks", where),
        config_sections=_targets(raw, "config_sections", where),
        gateway_channels=_texts(raw, "gateway_channels", where),
        env_declarations=_texts(raw, "env_declarations", where),
    )


def choose_profile(
    folder: Path, *, environ: Mapping[str, str], default: str, name: str | None = None
) -> Profile:
    """The profile called `name`, else the one that `LEMON_RUNTIME_PROFILE` names, else `default`.

    An unknown name from the variable falls back to `default` with a warning; from code it raises
    `ProfileError`.
    """
    wanted = name or environ.get(PROFILE_VARIABLE, "").strip()
    if wanted and wanted in profile_names(folder):
        return load_profile(folder / f"{wanted}.toml")
    if name is not None:
        known = ", ".join(profile_names(folder)) or "none"
        raise ProfileError(name, f"no such profile in {folder}; there are: {known}")
    if wanted:
        from lemon_core.logs import get_logger  # `lemon --version` reads a profile and logs nothing

        log = get_logger("lemon_core.profiles")
        log.warning("profile.unknown", variable=PROFILE_VARIABLE, name=wanted, using=default)
    return load_profile(folder / f"{default}.toml")


def profile_names(folder: Path) -> tuple[str, ...]:
    """The profiles that lie in `folder`."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def with_commands(profile: Profile) -> Profile:
    """The built form: each of `command_apps` is asked for its `<app>.cli:COMMANDS`.

    Raises `ProfileError` when an app has none or two of them claim the same word.
    """
    commands: dict[str, tuple[CommandSpec, ...]] = dict(profile.commands)
    for app in profile.command_apps:
        try:
            found = load_target(f"{app}.cli:COMMANDS")
        except (ImportError, AttributeError) as exc:
            raise ProfileError(profile.name, f"{app}.cli has no COMMANDS: {exc}") from exc
        commands[app] = _specs(found, f"{app}.cli:COMMANDS")
    _refuse_duplicates(commands, profile.name)
    return replace(profile, command_apps=(), commands=commands)


def render_profile(profile: Profile) -> str:
    """`profile` as TOML that `parse_profile` reads back equal."""
    lines = [f"name = {_toml(profile.name)}", f"description = {_toml(profile.description)}"]
    lines.append(f"components = {_toml(list(profile.components))}")
    if profile.executor is not None:
        lines.append(f"executor = {_toml(profile.executor)}")
    lines.append(f"libraries = {_toml(list(profile.libraries))}")
    lines.append(f"command_apps = {_toml(list(profile.command_apps))}")
    lines.append(f"doctor_checks = {_toml(list(profile.doctor_checks))}")
    lines.append(f"gateway_channels = {_toml(list(profile.gateway_channels))}")
    lines.append(f"env_declarations = {_toml(list(profile.env_declarations))}")
    if profile.config_sections:
        lines += ["", "[config_sections]"]
        lines += [f"{_toml(path)} = {_toml(at)}" for path, at in profile.config_sections.items()]
    if profile.config:
        lines += ["", "[config]", *_assignments(profile.config)]
    for app, specs in profile.commands.items():
        for spec in specs:
            lines += ["", "[[commands]]", f"app = {_toml(app)}", f"name = {_toml(spec.name)}"]
            lines += [f"summary = {_toml(spec.summary)}", f"target = {_toml(spec.target)}"]
            lines.append(f"needs_runtime = {_toml(spec.needs_runtime)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    # JSON's text, lists of text and booleans are TOML's as well, but for the delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _assignments(table: Mapping[str, object], prefix: str = "") -> list[str]:
    lines: list[str] = []
    for key, value in table.items():
        path = f"{prefix}{_toml(key)}"
        if isinstance(value, Mapping):
            lines += _assignments(value, f"{path}.")
        else:
            lines.append(f"{path} = {_toml(value)}")
    return lines


def _table(raw: Mapping[str, object], key: str, where: str) -> dict[str, object]:
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise ProfileError(where, f"{key} is not a table")
    return value


def _targets(raw: Mapping[str, object], key: str, where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for path, target in _table(raw, key, where).items():
        if not isinstance(target, str):
            raise ProfileError(where, f"{key}.{path} is not text; quote a path that has dots")
        found[path] = target
    return found


def _texts(raw: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    value = raw.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ProfileError(where, f"{key} is not a list of text")
    return tuple(value)


def _commands(rows: object, where: str) -> dict[str, tuple[CommandSpec, ...]]:
    if not isinstance(rows, list):
        raise ProfileError(where, "commands is not a list of tables")
    found: dict[str, tuple[CommandSpec, ...]] = {}
    for row in rows:
        try:
            fields = dict(row)
            app = str(fields.pop("app"))
            spec = CommandSpec(**fields)
        except (KeyError, TypeError, ValueError) as exc:
            raise ProfileError(where, f"a command is malformed: {exc}") from exc
        found[app] = (*found.get(app, ()), spec)
    _refuse_duplicates(found, where)
    return found


def _specs(value: object, where: str) -> tuple[CommandSpec, ...]:
    if not isinstance(value, Sequence) or not all(isinstance(s, CommandSpec) for s in value):
        raise ProfileError(where, "is not a sequence of CommandSpec")
    return tuple(value)


def _refuse_duplicates(commands: Mapping[str, Sequence[CommandSpec]], where: str) -> None:
    owners: dict[str, str] = {}
    for app, specs in commands.items():
        for spec in specs:
            if spec.name in owners:
                raise ProfileError(
                    where, f"command {spec.name!r} is claimed by {owners[spec.name]} and {app}"
                )
            owners[spec.name] = app
