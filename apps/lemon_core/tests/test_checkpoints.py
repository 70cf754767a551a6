"""Checkpoints of workspace files (specification lemon_core 15)."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from lemon_core.boot import boot
from lemon_core.bus import Bus, run_topic, session_topic
from lemon_core.checkpoint_errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    CheckpointRefused,
)
from lemon_core.checkpoint_files import FILE_MAX_BYTES
from lemon_core.checkpoint_folder import CheckpointFolder
from lemon_core.checkpoints import CheckpointCause, Checkpoints, Restored, checkpoints
from lemon_core.introspection import Introspection
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.store import Store, StoreSettings, open_store
from lemon_core.testing import FakeClock, scrubbed_environ
from lemon_core.tests.processes import python, read_line
from lemon_core.workspace import Workspace

pytestmark = pytest.mark.anyio

OWNER_ONLY = 0o600


@dataclass(frozen=True, slots=True)
class Desk:
    """A workspace, and checkpoints of it."""

    folder: Path
    cwd: Path
    bus: Bus
    introspection: Introspection

    def open(self, max_bytes: int = 1 << 30) -> Checkpoints:
        folder = CheckpointFolder(self.folder, max_bytes=max_bytes)
        return Checkpoints(folder, FakeClock(), self.bus, self.introspection)

    def write(self, name: str, content: bytes, mode: int = 0o644) -> Path:
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def stored(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store(StoreSettings("memory", None), FakeClock()) as opened:
        yield opened


@pytest.fixture
def desk(tmp_path: Path, store: Store) -> Desk:
    cwd = tmp_path / "project"
    cwd.mkdir()
    folder = tmp_path / "state" / "checkpoints"
    return Desk(folder, cwd.resolve(), Bus(), Introspection(store, FakeClock()))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.behaviour("lemon_core.41")
async def test_a_restore_recreates_deletes_and_restores_content_and_modes(desk: Desk) -> None:
    kept = desk.open()
    raw = bytes(range(256)) + b"\r\n\xff"
    desk.write("a.bin", raw, 0o640)
    desk.write("sub/run.sh", b"#!/bin/sh\n", 0o755)
    made = await kept.create_filesystem("s", ["a.bin", "sub/run.sh", "new.txt"], str(desk.cwd))
    assert (made.kind, made.paths) == ("filesystem", ("a.bin", "sub/run.sh", "new.txt"))
    desk.write("a.bin", b"changed", 0o600)
    (desk.cwd / "sub" / "run.sh").unlink()
    (desk.cwd / "sub").rmdir()
    desk.write("new.txt", b"made by the agent")
    result = await kept.restore_filesystem(made.id)
    assert result == Restored(("a.bin", "sub/run.sh"), ("new.txt",))
    assert (desk.cwd / "a.bin").read_bytes() == raw
    assert mode_of(desk.cwd / "a.bin") == 0o640
    assert (desk.cwd / "sub" / "run.sh").read_bytes() == b"#!/bin/sh\n"
    assert mode_of(desk.cwd / "sub" / "run.sh") == 0o755
    assert sorted(os.listdir(desk.cwd)) == ["a.bin", "sub"]


@pytest.mark.behaviour("lemon_core.41")
async def test_checkpoints_are_private_files_that_another_process_restores(
    desk: Desk, tmp_path: Path
) -> None:
    """They survive a reboot: nothing of them is in memory or in the temporary folder."""
    desk.write("a", b"before")
    made = await desk.open().create_filesystem("s", ["a"], str(desk.cwd))
    file = desk.folder / f"{made.id}.json"
    assert (mode_of(desk.folder), mode_of(file)) == (0o700, OWNER_ONLY)
    assert json.loads(file.read_bytes())["checkpoint"]["paths"] == ["a"]
    desk.write("a", b"after")
    with python(RESTORE, str(desk.folder), made.id) as process:
        assert read_line(process) == "restored a"
    assert (desk.cwd / "a").read_bytes() == b"before"


RESTORE = """
import sys, anyio
from pathlib import Path
from lemon_core.bus import Bus
from lemon_core.checkpoint_folder import CheckpointFolder
from lemon_core.checkpoints import Checkpoints
from lemon_core.clock import SystemClock
from lemon_core.introspection import Introspection
from lemon_core.store import StoreSettings, open_store

async def main():
    clock = SystemClock()
    folder = CheckpointFolder(Path(sys.argv[1]))
    async with open_store(StoreSettings("memory", None), clock) as store:
        kept = Checkpoints(folder, clock, Bus(), Introspection(store, clock))
        done = await kept.restore_filesystem(sys.argv[2])
        print("restored", *done.restored, flush=True)

anyio.run(main)
"""


@pytest.mark.behaviour("lemon_core.41", "lemon_core.106")
async def test_all_together_stay_under_the_cap_and_the_oldest_go_first(desk: Desk) -> None:
    kept, limit = desk.open(max_bytes=5 * 4_096), 5 * 4_096
    made = []
    for number in range(8):
        desk.write("a", bytes(2_000 + number))
        made.append(await kept.create_filesystem("s", ["a"], str(desk.cwd)))
        assert sum(path.stat().st_size for path in desk.stored()) <= limit
    assert [path.stem for path in desk.stored()] == [one.id for one in made[-5:]]
    usage = await kept.usage()
    assert (usage.count, usage.used_bytes, usage.max_bytes) == (5, limit, limit)
    with pytest.raises(CheckpointNotFound):
        await kept.restore_filesystem(made[0].id)


@pytest.mark.behaviour("lemon_core.106")
async def test_a_checkpoint_over_the_cap_is_refused_and_removes_nothing(desk: Desk) -> None:
    kept = desk.open(max_bytes=4 * 4_096)
    desk.write("a", b"small")
    first = await kept.create_filesystem("s", ["a"], str(desk.cwd))
    desk.write("big", bytes(20_000))
    with pytest.raises(CheckpointRefused, match="need more than"):
        await kept.create_filesystem("s", ["big"], str(desk.cwd))
    with pytest.raises(CheckpointRefused, match="need more than"):
        await kept.create("s", {"text": "x" * 20_000})
    assert [path.stem for path in desk.stored()] == [first.id]
    assert list(desk.folder.glob(".chk*")) == []


@pytest.mark.behaviour("lemon_core.106")
async def test_a_warning_comes_once_before_the_cap(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    kept = desk.open(max_bytes=5 * 4_096)
    desk.write("a", b"small")
    counts = []
    for _ in range(6):
        await kept.create_filesystem("s", ["a"], str(desk.cwd))
        counts.append(sum("checkpoints.nearly_full" in line for line in caplog.messages))
    assert counts == [0, 0, 0, 1, 1, 1]


@pytest.mark.behaviour("lemon_core.106")
async def test_what_a_killed_process_left_is_removed_when_a_runtime_starts(
    tmp_path: Path, desk: Desk
) -> None:
    paths = PathSettings(tmp_path / "home")
    folder = paths.checkpoint_dir
    desk.write("a", b"x")
    with python(KILLED, str(folder), str(desk.cwd)) as process:
        assert read_line(process) == "writing"
        assert [path.suffix for path in folder.glob(".chk_*")] == [".tmp"]
        process.kill()
        process.wait(timeout=5)
    assert list(folder.glob(".chk_*")) != []
    with anyio.fail_after(5):
        environ = scrubbed_environ(paths.home)
        async with boot(
            Profile("x"),
            cwd=desk.cwd,
            environ=environ,
            paths=paths,
            serve=False,
            overrides={"store": {"backend": "memory"}},
        ) as runtime:
            # The tidying has the one worker thread first.
            assert await runtime.service(checkpoints).list() == ()
    assert list(folder.glob(".chk_*")) == []


KILLED = """
import signal, sys
from pathlib import Path
from lemon_core.checkpoint_files import ABSENT, Place
from lemon_core.checkpoint_folder import Checkpoint, CheckpointFolder

def read():
    print("writing", flush=True)
    signal.pause()
    return ABSENT

header = Checkpoint("chk_0123456789abcdef", "filesystem", "s", 1, sys.argv[2], ("a",))
CheckpointFolder(Path(sys.argv[1])).write(header, {}, [(Place("a", sys.argv[2], "a"), read)])
"""


@pytest.mark.behaviour("lemon_core.41")
@pytest.mark.parametrize("text", ["../chk_0123456789abcdef", "chk_0/123456789abcde", "chk_", ""])
async def test_an_id_with_separators_is_no_id(desk: Desk, text: str) -> None:
    kept = desk.open()
    outside = desk.folder.parent / "chk_0123456789abcdef.json"
    outside.parent.mkdir(parents=True)
    outside.write_text("{}")
    for attempt in (
        kept.restore_filesystem(text),
        kept.diff_filesystem(text),
        kept.delete(text),
        kept.get(text),
    ):
        with pytest.raises(CheckpointRefused, match="no checkpoint id"):
            await attempt
    assert outside.exists()


@pytest.mark.behaviour("lemon_core.41")
async def test_a_path_that_is_not_in_the_checkpoint_is_refused_before_anything_changes(
    desk: Desk,
) -> None:
    kept = desk.open()
    desk.write("a", b"before")
    desk.write("other", b"other")
    made = await kept.create_filesystem("s", ["a"], str(desk.cwd))
    desk.write("a", b"after")
    for foreign in ("other", "../a", "/etc/passwd"):
        with pytest.raises(CheckpointRefused, match="is not in"):
            await kept.restore_filesystem(made.id, ["a", foreign])
        with pytest.raises(CheckpointRefused, match="is not in"):
            await kept.diff_filesystem(made.id, [foreign])
    assert (desk.cwd / "a").read_bytes() == b"after"
    done = await kept.restore_filesystem(made.id, [str(desk.cwd / "a")])
    assert done == Restored(("a",), ())


async def test_some_paths_are_restored_and_the_rest_stays(desk: Desk) -> None:
    kept = desk.open()
    desk.write("a", b"1")
    desk.write("b", b"1")
    made = await kept.create_filesystem("s", ["a", "./b", "a"], str(desk.cwd))
    assert made.paths == ("a", "b")
    desk.write("a", b"2")
    desk.write("b", b"2")
    assert await kept.restore_filesystem(made.id, ["./b"]) == Restored(("b",), ())
    assert ((desk.cwd / "a").read_bytes(), (desk.cwd / "b").read_bytes()) == (b"2", b"1")


async def test_what_is_no_regular_file_of_ten_mebibytes_is_refused(desk: Desk) -> None:
    kept = desk.open()
    exact = desk.write("exact", b"")
    os.truncate(exact, FILE_MAX_BYTES)
    large = desk.write("large", b"")
    os.truncate(large, FILE_MAX_BYTES + 1)
    (desk.cwd / "link").symlink_to(exact)
    (desk.cwd / "folder").mkdir()
    os.mkfifo(desk.cwd / "pipe")
    for name, why in (
        ("large", "larger than 10 MiB"),
        ("link", "is a link"),
        ("folder", "is a folder"),
        ("pipe", "no regular file"),
    ):
        with pytest.raises(CheckpointRefused, match=why):
            await kept.create_filesystem("s", ["exact", name], str(desk.cwd))
    with pytest.raises(CheckpointRefused, match="at least one path"):
        await kept.create_filesystem("s", [], str(desk.cwd))
    assert desk.stored() == []
    assert (await kept.create_filesystem("s", ["exact"], str(desk.cwd))).paths == ("exact",)


async def test_no_path_outside_the_workspace_is_taken(desk: Desk, tmp_path: Path) -> None:
    kept = desk.open()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"secret")
    (desk.cwd / "way").symlink_to(outside)
    for text in ("../outside/f", str(outside / "f"), "way/f", "way/../f", ".", "..", "", "a\0b"):
        with pytest.raises(CheckpointRefused):
            await kept.create_filesystem("s", [text], str(desk.cwd))
    wider = Workspace.at(str(desk.cwd), [str(tmp_path)])
    made = await kept.create_filesystem(
        "s", ["../outside/f", "way/f"], str(desk.cwd), workspace=wider
    )
    assert made.paths == (str(outside.resolve() / "f"),)
    with pytest.raises(CheckpointRefused, match="outside the workspace"):
        await kept.restore_filesystem(made.id, workspace=Workspace.at(str(desk.cwd)))
    read_only = Workspace.at(str(tmp_path), read_only=True)
    with pytest.raises(CheckpointRefused, match="read-only"):
        await kept.restore_filesystem(made.id, workspace=read_only)
    with pytest.raises(CheckpointRefused, match="outside the workspace"):
        await kept.create_filesystem("s", ["f"], "/", workspace=wider)


@pytest.mark.behaviour("lemon_core.41")
async def test_a_link_that_was_put_in_the_way_is_not_followed(desk: Desk, tmp_path: Path) -> None:
    kept = desk.open()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "f").write_bytes(b"mine")
    desk.write("sub/f", b"before")
    desk.write("g", b"before")
    made = await kept.create_filesystem("s", ["sub/f", "sub/new", "g", "h"], str(desk.cwd))
    (desk.cwd / "sub" / "f").unlink()
    (desk.cwd / "sub").rmdir()
    (desk.cwd / "sub").symlink_to(victim)
    for paths in (None, ["sub/f"], ["sub/new"]):
        with pytest.raises(CheckpointRefused, match="link"):
            await kept.restore_filesystem(made.id, paths)
    assert (victim / "f").read_bytes() == b"mine"
    for name in ("g", "h"):
        (desk.cwd / name).unlink(missing_ok=True)
        (desk.cwd / name).symlink_to(victim / "f")
    assert await kept.restore_filesystem(made.id, ["g", "h"]) == Restored(("g",), ("h",))
    assert (victim / "f").read_bytes() == b"mine"
    assert not (desk.cwd / "g").is_symlink()
    assert (desk.cwd / "g").read_bytes() == b"before"
    assert not (desk.cwd / "h").is_symlink()


async def test_a_workspace_that_became_a_link_is_refused(desk: Desk, tmp_path: Path) -> None:
    kept = desk.open()
    desk.write("a", b"x")
    made = await kept.create_filesystem("s", ["a"], str(desk.cwd))
    desk.cwd.rename(tmp_path / "moved")
    desk.cwd.symlink_to(tmp_path / "moved")
    with pytest.raises(CheckpointRefused, match="is a link now"):
        await kept.restore_filesystem(made.id)
    desk.cwd.unlink()
    with pytest.raises(CheckpointError, match="cannot be restored"):
        await kept.restore_filesystem(made.id)


async def test_a_folder_in_the_way_is_told_before_anything_is_restored(desk: Desk) -> None:
    kept = desk.open()
    desk.write("a", b"before")
    made = await kept.create_filesystem("s", ["a", "b"], str(desk.cwd))
    desk.write("a", b"after")
    desk.write("b/inner", b"x")
    with pytest.raises(CheckpointRefused, match="b is no regular file now"):
        await kept.restore_filesystem(made.id)
    assert (desk.cwd / "a").read_bytes() == b"after"


async def test_the_diff_tells_what_changed(desk: Desk) -> None:
    kept = desk.open()
    for name in ("same", "text", "gone", "mode", "raw", "long"):
        desk.write(name, b"one\ntwo\n")
    desk.write("raw", b"\xff")
    paths = ["same", "text", "gone", "mode", "raw", "long", "new"]
    made = await kept.create_filesystem("s", paths, str(desk.cwd))
    desk.write("text", b"one\n2")
    (desk.cwd / "gone").unlink()
    (desk.cwd / "mode").chmod(0o755)
    desk.write("raw", b"\xfe\xfe")
    desk.write("long", b"x" * 600_000)
    desk.write("new", b"hello\n")
    changes = {change.path: change for change in await kept.diff_filesystem(made.id)}
    assert {path: change.change for path, change in changes.items()} == {
        "text": "modified",
        "gone": "deleted",
        "mode": "mode",
        "raw": "modified",
        "long": "modified",
        "new": "created",
    }
    assert changes["text"].diff == (
        "--- checkpoint/text\n+++ current/text\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\\ no newline\n"
    )
    assert changes["mode"].diff == "mode 0644 → 0755\n"
    assert changes["raw"].diff == "raw: binary, 1 bytes before, 2 bytes now\n"
    assert changes["long"].diff == "long: 8 bytes before, 600000 bytes now\n"
    only = await kept.diff_filesystem(made.id, ["new"])
    assert [change.path for change in only] == ["new"]


async def test_list_latest_delete_and_prune(desk: Desk) -> None:
    kept = desk.open()
    desk.write("a", b"x")
    mine = [await kept.create_filesystem("s", ["a"], str(desk.cwd)) for _ in range(12)]
    other = await kept.create("other", {"todo": ["é"]})
    assert await kept.get(other.id) == (other, {"todo": ["é"]})
    assert await kept.list() == (other, *reversed(mine))
    assert await kept.list("s") == tuple(reversed(mine))
    assert await kept.latest("s") == mine[-1]
    assert await kept.latest("nobody") is None
    assert await kept.prune("s") == 2
    assert await kept.list("s") == tuple(reversed(mine[2:]))
    await kept.delete(mine[5].id)
    with pytest.raises(CheckpointNotFound):
        await kept.delete(mine[5].id)
    with pytest.raises(CheckpointRefused, match="holds no files"):
        await kept.diff_filesystem(other.id)
    assert await kept.prune("s", keep=0) == 9
    with pytest.raises(CheckpointRefused):
        await kept.prune("s", keep=-1)
    assert await kept.list() == (other,)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"raw", "\0"])
async def test_data_is_json(desk: Desk, value: object) -> None:
    kept = desk.open()
    if isinstance(value, str):
        made = await kept.create("s", {"text": value})
        assert await kept.get(made.id) == (made, {"text": value})
        return
    with pytest.raises(CheckpointRefused, match="made of JSON values"):
        await kept.create("s", {"value": value})
    assert desk.stored() == []
    assert list(desk.folder.glob(".chk*")) == []


async def test_an_empty_home_lists_nothing_and_stays_empty(desk: Desk) -> None:
    kept = desk.open()
    assert await kept.list() == ()
    assert (await kept.usage()).count == 0
    await kept.tidy()
    assert await kept.prune("s") == 0
    assert not desk.folder.exists()


async def test_damaged_files_are_told_and_not_listed(desk: Desk) -> None:
    kept = desk.open()
    desk.write("a", b"x")
    good = await kept.create_filesystem("s", ["a"], str(desk.cwd))
    cut = await kept.create_filesystem("s", ["a"], str(desk.cwd))
    file = desk.folder / f"{cut.id}.json"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(CheckpointDamaged, match="ends too early"):
        await kept.restore_filesystem(cut.id)
    for text in (b"", b"[]", b'{"checkpoint": 3}', b'{"checkpoint": {"version": 9}}', lines[0][9:]):
        file.write_bytes(text)
        with pytest.raises(CheckpointDamaged):
            await kept.restore_filesystem(cut.id)
    file.write_bytes(b"".join([*lines[:2], lines[2], b'{"shown": 1}\n', lines[-1]]))
    with pytest.raises(CheckpointDamaged, match="damaged entry"):
        await kept.restore_filesystem(cut.id)
    file.write_bytes(b"")
    assert await kept.list() == (good,)


async def test_events_and_records_name_files_and_hold_nothing_of_them(desk: Desk) -> None:
    kept = desk.open()
    desk.write("a", b"top secret words")
    cause = CheckpointCause(run_id="run_1", session_key="key", tool="write")
    with (
        desk.bus.subscribe(run_topic("run_1")) as of_run,
        desk.bus.subscribe(session_topic("key")) as of_session,
    ):
        made = await kept.create_filesystem("sess_1", ["a"], str(desk.cwd), cause=cause)
        await kept.restore_filesystem(made.id, cause=cause)
        await kept.delete(made.id, CheckpointCause(session_key="key"))
        with anyio.fail_after(5):
            events = [*await of_run.receive_batch(), *await of_session.receive_batch()]
    assert [event.type for event in events] == [
        "checkpoint_created",
        "checkpoint_restored",
        "checkpoint_deleted",
    ]
    assert events[1].payload == {
        "checkpoint_id": made.id,
        "checkpoint_kind": "filesystem",
        "action": "restored",
        "path_count": 1,
        "restored_count": 1,
        "tool": "write",
        "session_id": "sess_1",
        "run_id": "run_1",
        "session_key": "key",
        "paths": ["a"],
    }
    records = await desk.introspection.query(event_type=[event.type for event in events])
    assert len(records) == 3
    text = json.dumps([[record.payload for record in records], [e.payload for e in events]])
    assert "secret" not in text
    assert "sess_1" not in json.dumps([record.payload for record in records])


async def test_a_folder_that_cannot_be_used_is_told_in_one_line(desk: Desk) -> None:
    desk.folder.parent.mkdir(parents=True)
    desk.folder.write_text("a file in its place")
    desk.write("a", b"x")
    with pytest.raises(CheckpointError, match=r"checkpoints: checkpoints cannot be used"):
        await desk.open().create_filesystem("s", ["a"], str(desk.cwd))


async def test_one_of_two_writers_waits_for_the_other(desk: Desk) -> None:
    """Two processes share the folder: the lock keeps each other's temporary file."""
    one, two = desk.open(), desk.open()
    desk.write("a", b"x")
    async with anyio.create_task_group() as tasks:
        for kept in (one, two) * 5:
            tasks.start_soon(kept.create_filesystem, "s", ["a"], str(desk.cwd))
    assert len(await one.list("s")) == 10
