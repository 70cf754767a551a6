"""Checkpoints: what a session's files were before an agent changed them, to look at and to undo.

They are JSON files below `~/.lemon/checkpoints`, private, at most 1 GiB in all, and survive a
restart. All file work is done in worker threads, one at a time. Events and records tell which files
are concerned, never what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

import anyio
import anyio.to_thread

from lemon_core.bus import Bus, run_topic, session_topic
from lemon_core.checkpoint_diff import FileChange, compare
from lemon_core.checkpoint_errors import (
    CheckpointError,
    CheckpointNotFound,
    CheckpointRefused,
)
from lemon_core.checkpoint_files import (
    FileState,
    Place,
    check_restorable,
    read_state,
    size_of,
    unique_places,
    write_state,
)
from lemon_core.checkpoint_folder import (
    Checkpoint,
    CheckpointFolder,
    FolderUsage,
    expected_bytes,
)
from lemon_core.clock import Clock
from lemon_core.introspection import Introspection
from lemon_core.logs import get_logger
from lemon_core.runtime import Runtime
from lemon_core.workspace import Workspace

log = get_logger("lemon_core.checkpoints")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckpointCause:
    """Who made, restored or deleted a checkpoint; the events go to the run, or to the session.

    A run's events reach its session through the router, so they are not published there as well.
    """

    run_id: str | None = None
    session_key: str | None = None
    agent_id: str | None = None
    parent_run_id: str | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore changed, by the names of the checkpoint's paths."""

    restored: tuple[str, ...]
    deleted: tuple[str, ...]


_NOBODY = CheckpointCause()


class Checkpoints:
    """The checkpoints of one state directory; every method raises `CheckpointError`."""

    def __init__(
        self, folder: CheckpointFolder, clock: Clock, bus: Bus, introspection: Introspection
    ) -> None:
        self._folder, self._clock = folder, clock
        self._bus, self._introspection = bus, introspection
        # One worker thread at a time: each of them holds the lock of the folder anyway.
        self._one = anyio.CapacityLimiter(1)
        self._warned = False

    async def create(
        self, session_id: str, data: Mapping[str, object], cause: CheckpointCause = _NOBODY
    ) -> Checkpoint:
        """Keep `data`, a map of JSON values, for the session."""
        header = Checkpoint(_new_id(), "state", session_id, self._clock.now_ms())
        return await self._store(header, cause, lambda: self._folder.write(header, data))

    async def create_filesystem(
        self,
        session_id: str,
        paths: Iterable[str],
        cwd: str,
        *,
        workspace: Workspace | None = None,
        cause: CheckpointCause = _NOBODY,
    ) -> Checkpoint:
        """Keep what is at `paths` now; relative ones start at `cwd`, and absence is kept as well.

        They must lie inside a root of `workspace` (default: `cwd` alone). Links, folders, what is
        no file, and files of more than 10 MiB are refused, and nothing is kept then.
        """
        try:
            within = Workspace.at(cwd, () if workspace is None else workspace.roots)
        except ValueError as exc:
            raise CheckpointRefused(f"{cwd} lies outside the workspace") from exc
        checkpoint_id, now_ms, wanted = _new_id(), self._clock.now_ms(), tuple(paths)
        headers: list[Checkpoint] = []

        def write() -> FolderUsage:
            places = unique_places(wanted, within)
            if not places:
                raise CheckpointRefused("a checkpoint of files names at least one path")
            names = tuple(place.shown for place in places)
            header = Checkpoint(checkpoint_id, "filesystem", session_id, now_ms, within.cwd, names)
            headers.append(header)
            # What is refused is refused here, before room is made for the rest. The contents are
            # read as they are written: all of them together need not fit into memory.
            sizes = [size_of(place) for place in places]
            files = [(place, _reader(place)) for place in places]
            return self._folder.write(header, {}, files, expected_bytes=expected_bytes(sizes))

        await self._warn_when_full(await self._in_thread(write))
        self._tell("created", headers[0], cause)
        return headers[0]

    async def diff_filesystem(
        self, checkpoint_id: str, paths: Sequence[str] | None = None
    ) -> tuple[FileChange, ...]:
        """What changed since, in the checkpoint's order; `paths` as in `restore_filesystem`.

        What cannot be read as a file any more (a link, a folder) raises `CheckpointRefused`.
        """

        def work() -> tuple[FileChange, ...]:
            _, chosen = self._chosen(checkpoint_id, paths)
            changes = (
                compare(place.shown, state, read_state(place))
                for place, state in self._folder.files(checkpoint_id)
                if place in chosen
            )
            return tuple(change for change in changes if change is not None)

        return await self._in_thread(work)

    async def restore_filesystem(
        self,
        checkpoint_id: str,
        paths: Sequence[str] | None = None,
        *,
        workspace: Workspace | None = None,
        cause: CheckpointCause = _NOBODY,
    ) -> Restored:
        """Put files back, content and permissions, and delete those that did not exist.

        `paths` (default: all) must be paths of the checkpoint. With `workspace` every file must
        lie inside it too. All places are checked before the first is changed; nothing is written
        through a link.
        """

        def work() -> tuple[Checkpoint, Restored]:
            header, chosen = self._chosen(checkpoint_id, paths)
            _require_inside(chosen, workspace)
            for place in chosen:
                check_restorable(place)
            done: dict[bool, list[str]] = {True: [], False: []}
            for place, state in self._folder.files(checkpoint_id):
                if place in chosen:
                    write_state(place, state)
                    done[state.exists].append(place.shown)
            return header, Restored(tuple(done[True]), tuple(done[False]))

        header, result = await self._in_thread(work)
        self._tell("restored", header, cause, changed=(*result.restored, *result.deleted))
        return result

    async def get(self, checkpoint_id: str) -> tuple[Checkpoint, dict[str, object]]:
        """A checkpoint and the data that `create` kept in it."""
        return await self._in_thread(
            lambda: (self._folder.header(checkpoint_id), self._folder.data(checkpoint_id))
        )

    async def list(self, session_id: str | None = None) -> tuple[Checkpoint, ...]:
        """The checkpoints (of one session), newest first."""
        return await self._in_thread(lambda: self._folder.headers(session_id))

    async def latest(self, session_id: str) -> Checkpoint | None:
        """The newest checkpoint of the session; None when it has none."""
        return next(iter(await self.list(session_id)), None)

    async def delete(self, checkpoint_id: str, cause: CheckpointCause = _NOBODY) -> None:
        """Remove a checkpoint; raises `CheckpointNotFound`."""

        def work() -> Checkpoint:
            header = self._folder.header(checkpoint_id)
            if not self._folder.delete([checkpoint_id]):
                raise CheckpointNotFound(checkpoint_id)
            return header

        self._tell("deleted", await self._in_thread(work), cause)

    async def prune(self, session_id: str, keep: int = 10, cause: CheckpointCause = _NOBODY) -> int:
        """Remove all but the `keep` newest of the session; the number that went."""
        if keep < 0:
            raise CheckpointRefused(f"keep is at least 0, not {keep}")

        def work() -> list[Checkpoint]:
            old = self._folder.headers(session_id)[keep:]
            gone = set(self._folder.delete([header.id for header in old]))
            return [header for header in old if header.id in gone]

        removed = await self._in_thread(work)
        for header in removed:
            self._tell("deleted", header, cause)
        return len(removed)

    async def usage(self) -> FolderUsage:
        """How full the folder is."""
        return await self._in_thread(self._folder.usage)

    async def tidy(self) -> None:
        """Remove what a crash left behind and what is over the cap; boot does this once.

        A failure is logged: no checkpoint is needed to start.
        """
        try:
            await self._warn_when_full(await self._in_thread(self._folder.tidy))
        except CheckpointError as exc:
            log.warning("checkpoints.not_tidied", error=str(exc))

    async def _store(
        self, header: Checkpoint, cause: CheckpointCause, write: Callable[[], FolderUsage]
    ) -> Checkpoint:
        await self._warn_when_full(await self._in_thread(write))
        self._tell("created", header, cause)
        return header

    def _chosen(
        self, checkpoint_id: str, paths: Sequence[str] | None
    ) -> tuple[Checkpoint, dict[Place, None]]:
        header = self._folder.header(checkpoint_id)
        if header.kind != "filesystem":
            raise CheckpointRefused(f"{checkpoint_id} holds no files")
        places = [place for place, _ in self._folder.files(checkpoint_id)]
        if paths is None:
            return header, dict.fromkeys(places)
        names = {name: place for place in places for name in (place.shown, place.path)}
        chosen: dict[Place, None] = {}
        for text in paths:
            place = names.get(text) or names.get(os.path.normpath(text))
            if place is None:
                raise CheckpointRefused(f"{text} is not in {checkpoint_id}")
            chosen[place] = None
        return header, chosen

    async def _warn_when_full(self, usage: FolderUsage) -> None:
        if usage.nearly_full and not self._warned:
            log.warning(
                "checkpoints.nearly_full",
                path=str(self._folder.path),
                used_bytes=usage.used_bytes,
                max_bytes=usage.max_bytes,
                next="the oldest checkpoints are removed when it is full",
            )
        self._warned = usage.nearly_full

    def _tell(
        self,
        action: str,
        header: Checkpoint,
        cause: CheckpointCause,
        changed: tuple[str, ...] | None = None,
    ) -> None:
        about: dict[str, object] = {
            "checkpoint_id": header.id,
            "checkpoint_kind": header.kind,
            "action": action,
            "path_count": len(header.paths),
        }
        if changed is not None:
            about["restored_count"] = len(changed)
        if cause.tool is not None:
            about["tool"] = cause.tool
        # Records outlive the session: they name neither it nor its files.
        kept = {**about, "session_hash": sha256(header.session_id.encode()).hexdigest()[:16]}
        self._introspection.record(
            f"checkpoint_{action}",
            kept,
            run_id=cause.run_id,
            session_key=cause.session_key,
            agent_id=cause.agent_id,
            parent_run_id=cause.parent_run_id,
        )
        topic = _topic(cause)
        if topic is not None:
            paths = header.paths if changed is None else changed
            payload = {
                **about,
                "session_id": header.session_id,
                "run_id": cause.run_id,
                "session_key": cause.session_key,
                "paths": list(paths),
            }
            self._bus.publish_event(topic, f"checkpoint_{action}", payload)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._one)


def checkpoints(runtime: Runtime) -> Checkpoints:
    """The checkpoints of `runtime`; for `runtime.service`."""
    folder = CheckpointFolder(runtime.paths.checkpoint_dir)
    return Checkpoints(folder, runtime.clock, runtime.bus, runtime.introspection)


def _require_inside(places: Iterable[Place], workspace: Workspace | None) -> None:
    if workspace is None:
        return
    if workspace.read_only:
        raise CheckpointRefused("the workspace is read-only for this run")
    for place in places:
        if not workspace.contains(place.path):
            raise CheckpointRefused(f"{place.shown} lies outside the workspace")


def _topic(cause: CheckpointCause) -> str | None:
    if cause.run_id is not None:
        return run_topic(cause.run_id)
    return None if cause.session_key is None else session_topic(cause.session_key)


def _reader(place: Place) -> Callable[[], FileState]:
    return lambda: read_state(place)


def _new_id() -> str:
    return f"chk_{os.urandom(8).hex()}"
