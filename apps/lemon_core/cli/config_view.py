"""The configuration as `lemon config` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lemon_core.cli.marks import columns, dim, tick
from lemon_core.commands import CommandContext
from lemon_core.config.cache import config_files
from lemon_core.config.contributed import Contributed
from lemon_core.config.env import dotenv_file
from lemon_core.config.load import LoadedConfig, inspect_config
from lemon_core.config.origins import Origin, explain
from lemon_core.config.redact import is_private
from lemon_core.config.source import KeyPath, dotted, parse_dotted
from lemon_core.errors import LemonError

# The heading, and the sections below it, in the order of the output.
GROUPS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("Agent", ("defaults", "profiles", "runtime")),
    ("Providers", ("providers",)),
    ("Gateway", ("gateway",)),
    ("Logging", ("logging",)),
    ("TUI", ("tui",)),
)
_NOTHING: Final[tuple[object, ...]] = (None, "", [], {})
_WORDS: Final[Mapping[str, str]] = {
    "global": "file",
    "control_plane": "control plane",
    "profile": "runtime profile",
}
_WIDEST: Final = 60
# Keys that are nested deeper are details, which few people change.
_SHALLOW: Final = 2


class UnknownKey(LemonError):
    """There is no such key in the configuration."""

    code = "unknown_config_key"


@dataclass(frozen=True, slots=True)
class View:
    """The configuration for a project, what is wrong with it, and the files that it came from."""

    loaded: LoadedConfig
    errors: tuple[str, ...]
    files: tuple[tuple[Path, bool], ...]


def inspected(context: CommandContext, project: Path, *, stored: bool = False) -> View:
    """What can be used of the configuration, whatever is wrong with it.

    With `stored` the overrides of the control plane count too, when there is a store to ask.
    """
    loaded, errors = inspect_config(
        project,
        paths=context.paths,
        environ=context.environ,
        profile_defaults=context.profile.config,
        contributed=Contributed.of(context.profile),
    )
    if stored:
        loaded, problem = _with_overrides(context, loaded)
        errors = (*errors, *problem)
    files = (*config_files(project, context.paths)[:2], dotenv_file(context.paths, context.environ))
    seen = dict.fromkeys(files)
    return View(loaded, errors, tuple((file, file.exists()) for file in seen))


def origins_below(view: View, text: str) -> dict[str, dict[str, object]]:
    """The values at and below the dotted path, as JSON; raises `UnknownKey`."""
    try:
        wanted = parse_dotted(text)
    except ValueError as exc:
        raise UnknownKey(str(exc)) from exc
    origins = explain(view.loaded)
    below = {
        name: it for name, it in origins.items() if parse_dotted(name)[: len(wanted)] == wanted
    }
    if not below:
        from difflib import get_close_matches

        near = get_close_matches(text, origins, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UnknownKey(f"{text}: there is no such key{hint}")
    return {name: _json(origin) for name, origin in below.items()}


def as_document(view: View) -> dict[str, object]:
    """Everything in force, for programs; of a credential only whether it is set."""
    settings: dict[str, object] = {}
    for name, origin in explain(view.loaded).items():
        if is_private(parse_dotted(name)):
            settings[name] = {"set": origin.value not in _NOTHING, "layer": origin.layer}
        else:
            settings[name] = _json(origin)
    return {
        "settings": settings,
        "errors": list(view.errors),
        "warnings": list(view.loaded.warnings),
        "files": [{"path": str(file), "present": there} for file, there in view.files],
    }


def as_lines(view: View, context: CommandContext, *, everything: bool) -> list[str]:
    """Everything in force, for people; without `everything` no details that nobody has set."""
    origins = {parse_dotted(name): it for name, it in explain(view.loaded).items()}
    lines = [dim(context, f"{file}{'' if there else ' (not there)'}") for file, there in view.files]
    left_out = 0
    for title, sections in GROUPS:
        found = {path: it for path, it in origins.items() if path[0] in sections}
        rows = [
            _row(context, path, origin)
            for path, origin in found.items()
            if everything or _is_telling(path, origin)
        ]
        left_out += len(found) - len(rows)
        lines += ["", title, *(columns(rows, "  ") or [dim(context, "  nothing is set")])]
    if left_out:
        lines += ["", dim(context, f"{left_out} more are not set or at their defaults: -v")]
    return lines


def _is_telling(path: KeyPath, origin: Origin) -> bool:
    return origin.layer != "default" or (len(path) <= _SHALLOW and origin.value not in _NOTHING)


def _row(context: CommandContext, path: KeyPath, origin: Origin) -> tuple[str, str, str]:
    if is_private(path):
        value = tick(context, origin.value not in _NOTHING)
    else:
        value = _short(origin.value)
    return dotted(path), value, dim(context, _where(origin))


def _where(origin: Origin) -> str:
    layer = _WORDS.get(origin.layer, origin.layer)
    hidden = ", ".join(_WORDS.get(it.layer, it.layer) for it in origin.shadowed)
    return f"{layer} (hides {hidden})" if hidden else layer


def _short(value: object) -> str:
    import json

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _json(origin: Origin) -> dict[str, object]:
    shadowed = [{"layer": it.layer, "value": it.value} for it in origin.shadowed]
    return {"value": origin.value, "layer": origin.layer, "shadowed": shadowed}


def _with_overrides(
    context: CommandContext, loaded: LoadedConfig
) -> tuple[LoadedConfig, tuple[str, ...]]:
    """`loaded` with what the control plane stored; a store that was never made is not made now."""
    from lemon_core.configured_store import store_settings
    from lemon_core.store.sqlite_file import database_file

    settings = store_settings(loaded.config, context.paths)
    file = None if settings.path is None else database_file(settings.path)
    if settings.backend == "memory" or (
        settings.backend == "sqlite" and not (file and file.exists())
    ):
        return loaded, ()
    import anyio

    try:
        return anyio.run(_read_overrides, context, loaded), ()
    except LemonError as exc:
        return loaded, (f"the overrides in the store are not shown: {exc}",)


async def _read_overrides(context: CommandContext, loaded: LoadedConfig) -> LoadedConfig:
    from lemon_core import logs
    from lemon_core.clock import SystemClock
    from lemon_core.config.load import with_stored
    from lemon_core.configured_store import open_configured_store
    from lemon_core.store.system_config import SystemConfigStore

    logs.configure("off")
    clock = SystemClock()
    async with open_configured_store(loaded.config, context.paths, loaded.environ, clock) as store:
        return with_stored(loaded, await SystemConfigStore(store).list())
