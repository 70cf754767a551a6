"""Take over a changed configuration while the runtime goes on, or keep the last good one.

Applied are `runtime.config`, the variables of `.env` in `runtime.environ`, and `logging.level`.
Whoever reads them at each use sees the change; what a component took at its start, such as ports,
slots and sections, counts from the next start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import anyio
import anyio.to_thread

from lemon_core.bus import SYSTEM_TOPIC, Bus
from lemon_core.config.fingerprints import digests
from lemon_core.config.load import LoadedConfig
from lemon_core.config.model import LemonConfig
from lemon_core.config.redact import HIDDEN, is_private, shown
from lemon_core.config.source import KeyPath, dotted
from lemon_core.errors import LemonError
from lemon_core.ids import new_uuid
from lemon_core.logs import get_logger
from lemon_core.system_events import ConfigReloaded, ConfigReloadFailed
from lemon_core.telemetry import Telemetry

log = get_logger("lemon_core.config.reload")

Source = Literal["files", "env", "secrets"]
ALL_SOURCES: Final[tuple[Source, ...]] = ("files", "env", "secrets")

Marks = Mapping[str, object]
"""What tells by name whether something is another one than before; never a value."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value before and after, as it may be shown; None where there is none."""

    before: object
    after: object


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """What a reload did: nothing, a change, or a failure that left everything as it was."""

    changed_sources: tuple[Source, ...] = ()
    diff: Mapping[str, Change] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigPorts:
    """What the reloader reads from and writes to.

    `load(validate)` reads the configuration; `apply(before, after)` puts it to use. `files` and
    `dotenv` are what is watched for changes, `secrets` gives the marks of the stored ones.
    """

    load: Callable[[bool], Awaitable[LoadedConfig]]
    apply: Callable[[LoadedConfig, LoadedConfig], None]
    secrets: Callable[[], Awaitable[Marks]]
    files: tuple[Path, ...]
    dotenv: Path


@dataclass(frozen=True, slots=True)
class _Look:
    """A source as it was found: `exact` is what is compared, `content` what a touch leaves."""

    exact: Marks
    content: Marks


class ConfigReloader:
    """The current configuration of a runtime, and how it becomes another one."""

    def __init__(
        self, current: LoadedConfig, ports: ConfigPorts, bus: Bus, telemetry: Telemetry
    ) -> None:
        self.current = current
        self._ports, self._bus, self._telemetry = ports, bus, telemetry
        # Secrets are first looked at later: the store is not to be asked while it opens.
        self._seen: dict[Source, _Look] = {
            "files": _of_files(ports.files),
            "env": _of_files((ports.dotenv,)),
        }
        self._one_at_a_time = anyio.Lock()

    @property
    def watched(self) -> tuple[Path, ...]:
        """The files whose change is worth a reload."""
        return (*self._ports.files, self._ports.dotenv)

    @property
    def busy(self) -> bool:
        """Whether a reload is under way."""
        return self._one_at_a_time.locked()

    async def reload(
        self,
        sources: Collection[Source] = ALL_SOURCES,
        *,
        force: bool = False,
        reason: str = "manual",
        validate: bool = True,
    ) -> ReloadResult:
        """Look at `sources` and take over what has changed there; one reload runs at a time.

        Nothing changed means an empty result and no event, unless `force` is given. A configuration
        that cannot be used leaves the last good one in place, is told once, and is in the result.
        Raises `StoreError` when secrets are asked for and the store does not answer.
        """
        async with self._one_at_a_time:
            seen = {source: await self._look(source) for source in ALL_SOURCES if source in sources}
            before = {
                source: self._seen[source]
                for source, look in seen.items()
                if source in self._seen and look.exact != self._seen[source].exact
            }
            # A bad file is not looked at again before it changes again.
            self._seen.update(seen)
            if not before and not force:
                return ReloadResult()
            with self._telemetry.span("lemon.config.reload", {"reason": reason}):
                try:
                    loaded = await self._ports.load(validate)
                except LemonError as exc:
                    return self._failed(str(exc), reason)
                return self._taken(loaded, before, seen, reason=reason, force=force)

    async def _look(self, source: Source) -> _Look:
        if source == "secrets":
            marks = await self._ports.secrets()
            return _Look(marks, marks)
        paths = self._ports.files if source == "files" else (self._ports.dotenv,)
        return await anyio.to_thread.run_sync(_of_files, paths)

    def _taken(
        self,
        loaded: LoadedConfig,
        before: Mapping[Source, _Look],
        seen: Mapping[Source, _Look],
        *,
        reason: str,
        force: bool,
    ) -> ReloadResult:
        changed = tuple(s for s in before if before[s].content != seen[s].content)
        diff = _difference(self.current, loaded)
        if "secrets" in before:
            diff |= _of_names("secrets", before["secrets"].content, seen["secrets"].content)
        if not changed and not diff and not force:
            return ReloadResult()  # a file was touched, no more
        previous, self.current = self.current, loaded
        self._ports.apply(previous, loaded)
        shown = {path: {"before": it.before, "after": it.after} for path, it in diff.items()}
        payload = ConfigReloaded(
            reload_id=new_uuid(),
            reason=reason,
            changed_sources=list(changed),
            changed_paths=list(diff),
            diff=dict(shown),
        )
        self._bus.publish_event(SYSTEM_TOPIC, "config_reloaded", payload)
        log.info("config.reloaded", reason=reason, sources=list(changed), paths=list(diff))
        return ReloadResult(changed, diff)

    def _failed(self, error: str, reason: str) -> ReloadResult:
        self._telemetry.emit("lemon.config.reload.failed", {}, {"reason": reason})
        payload = ConfigReloadFailed(reload_id=new_uuid(), error=error, reason=reason)
        self._bus.publish_event(SYSTEM_TOPIC, "config_reload_failed", payload)
        log.error("config.reload_failed", reason=reason, error=error)
        return ReloadResult(error=error)


def _of_files(paths: tuple[Path, ...]) -> _Look:
    found = digests(paths)
    return _Look(
        {str(path): digest for path, digest in found.items()},
        {str(path): digest and digest.sha256 for path, digest in found.items()},
    )


def _difference(before: LoadedConfig, after: LoadedConfig) -> dict[str, Change]:
    """Every changed key and variable by its path, with values that may be shown."""
    old, new = _flat(before.config), _flat(after.config)
    diff = {
        dotted(path): Change(_shown(path, old.get(path)), _shown(path, new.get(path)))
        for path in sorted({*old, *new}, key=dotted)
        if old.get(path) != new.get(path)
    }
    return diff | _of_names("env", before.environ, after.environ)


def _of_names(area: str, before: Marks, after: Marks) -> dict[str, Change]:
    """What came, went or changed in `area`, without any value."""
    return {
        dotted((area, name)): Change(
            *(HIDDEN if name in side else None for side in (before, after))
        )
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    }


def _shown(path: KeyPath, value: object) -> object:
    if value is not None and any(is_private(path[:end]) for end in range(1, len(path))):
        return HIDDEN
    return shown(path, value)


def _flat(config: LemonConfig) -> dict[KeyPath, object]:
    found: dict[KeyPath, object] = {}

    def add(value: object, path: KeyPath) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                add(inner, (*path, str(name)))
        else:
            found[path] = value

    add(config.model_dump(mode="json"), ())
    return found
