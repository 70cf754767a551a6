"""`read` and `write` (specification coding_agent 7, files and search)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coding_agent.tests.harness import call, details, tool_env
from coding_agent.tools import file_access, files
from coding_agent.tools.file_access import read_file
from coding_agent.tools.files import READ, WRITE, image_type, paginate
from lemon_agent import ToolError
from lemon_ai import ImageContent
from lemon_core.tool_policy import ToolPolicy

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


async def test_read_numbers_the_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\xff\n\xe2\x80\xa8three")
    result = await call(READ, tool_env(tmp_path), path="a.txt")
    assert result.text == "1: one\n2: two\ufffd\n3: \u2028three"
    assert details(result) == {
        "path": "a.txt",
        "total_lines": 3,
        "start_line": 1,
        "lines_shown": 3,
        "truncation": None,
    }


async def test_what_was_kept_of_a_long_result_is_foreign_when_it_is_read(tmp_path: Path) -> None:
    """It may be the rest of a web page, and would lose its mark on the way through a file."""
    (tmp_path / "a.txt").write_text("mine\n")
    env = tool_env(tmp_path)
    env.spill_dir.mkdir(parents=True)
    kept = env.spill_dir / "abc.txt"
    kept.write_text("from outside\n")
    (env.spill_dir / "abc.png").write_bytes(PNG)
    assert (await call(READ, env, path="a.txt")).trust == "trusted"
    assert (await call(READ, env, path=str(kept))).trust == "untrusted"
    assert (await call(READ, env, path=str(env.spill_dir / "abc.png"))).trust == "untrusted"


@pytest.mark.behaviour("coding_agent.12")
async def test_read_says_where_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 2_501)))
    first = await call(READ, tool_env(tmp_path), path="a.txt")
    assert first.text.startswith("1: line 1\n")
    assert first.text.endswith("\n[Showing lines 1-2000 of 2500. Use offset=2001 to continue.]")
    assert details(first)["truncation"] == "max_lines"
    rest = await call(READ, tool_env(tmp_path), path="a.txt", offset=2001)
    assert rest.text.startswith("2001: line 2001\n")
    assert rest.text.endswith("\n2500: line 2500")
    some = await call(READ, tool_env(tmp_path), path="a.txt", offset=2, limit=2)
    assert (
        some.text == "2: line 2\n3: line 3\n[Showing lines 2-3 of 2500. Use offset=4 to continue.]"
    )
    assert (details(some)["start_line"], details(some)["lines_shown"]) == (2, 2)


@pytest.mark.behaviour("coding_agent.12")
def test_pages_are_bounded_in_bytes_and_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paginate("x" * 60_000 + "\ny", None, None).truncation == "max_bytes"
    assert "[line cut: it has 60000 characters]" in paginate("x" * 60_000 + "\ny", None, None).text
    page = paginate(("x" * 1_000 + "\n") * 100, None, None)
    assert (page.lines_shown, page.truncation) == (50, "max_bytes")
    monkeypatch.setattr(files, "MAX_LINES", 2)
    monkeypatch.setattr(files, "MAX_BYTES", 20)
    assert paginate("abc\nabc\nabc\n", None, None).truncation == "lines_and_bytes"


@pytest.mark.behaviour("coding_agent.12")
def test_senseless_offsets_and_limits_are_ignored() -> None:
    assert paginate("a\nb", -3, 0).text == "1: a\n2: b"
    assert paginate("", 1, None).total_lines == 0
    with pytest.raises(ToolError, match="the file has 2 lines"):
        paginate("a\nb", 3, None)


@pytest.mark.behaviour("coding_agent.12")
async def test_read_shows_an_image_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(PNG)
    result = await call(READ, tool_env(tmp_path), path="a.jpg")
    (image,) = result.content
    assert isinstance(image, ImageContent)
    assert image.mime_type == "image/png"
    assert details(result) == {"path": "a.jpg", "mime_type": "image/png"}
    (tmp_path / "b.png").write_text("no image")
    with pytest.raises(ToolError, match="does not hold an image"):
        await call(READ, tool_env(tmp_path), path="b.png")


def test_every_kind_of_image_is_known_by_its_first_bytes() -> None:
    heads = [PNG, b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 ", b"BM"]
    kinds = ["image/png", "image/jpeg", "image/gif", "image/webp", None]
    assert [image_type(head) for head in heads] == kinds


async def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert (await call(READ, tool_env(tmp_path), path="a")).text == "(the file is empty)"


async def test_read_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = tool_env(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "big").write_bytes(b"12345")
    for path, problem in {
        "none": "none: no such file",
        ".": "is a directory: use ls",
        "pipe": "is not a regular file",
        "../x": "outside the workspace",
    }.items():
        with pytest.raises(ToolError, match=problem):
            await call(READ, env, path=path)
    with pytest.raises(ToolError, match="big has 5 bytes, 4 is the most"):
        read_file(env.guard.cwd / "big", "big", max_bytes=4)

    # Root may read everything, so the refusal of the system is made up.
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ToolError, match=r"big: cannot be read \(Permission denied\)"):
        read_file(env.guard.cwd / "big", "big")


async def test_write_keeps_bytes_exactly_and_makes_folders(tmp_path: Path) -> None:
    env = tool_env(tmp_path)
    result = await call(WRITE, env, path="new/deep/a.txt", content="a\r\nä\n")
    assert result.text == "Successfully wrote 6 bytes to new/deep/a.txt"
    told = details(result)
    assert (told["path"], told["bytes_written"]) == ("new/deep/a.txt", 6)
    assert (tmp_path / "new/deep/a.txt").read_bytes() == b"a\r\n\xc3\xa4\n"
    await call(WRITE, env, path="new/deep/a.txt", content="")
    assert (tmp_path / "new/deep/a.txt").read_bytes() == b""
    assert os.listdir(tmp_path / "new/deep") == ["a.txt"]


async def test_write_keeps_the_mode_and_follows_links_inside(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("old")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("run.sh")
    await call(WRITE, tool_env(tmp_path), path="link", content="new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "run.sh").read_text() == "new"
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o755


async def test_write_refuses_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    small = ToolPolicy.parse({"max_file_size": 3})
    for env, path, problem in [
        (tool_env(tmp_path), "folder", "folder is a directory"),
        (tool_env(tmp_path), "pipe", "pipe is not a regular file"),
        (tool_env(tmp_path), "../a", "outside the workspace"),
        (tool_env(tmp_path, read_only=True), "a", "read-only"),
        (tool_env(tmp_path, policy=small), "a", "4 bytes, but the policy allows 3"),
    ]:
        with pytest.raises(ToolError, match=problem):
            await call(WRITE, env, path=path, content="text")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "pipe"]


async def test_a_write_that_fails_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_access, "_write_new", refuse)
    with pytest.raises(ToolError, match=r"a: cannot be written \(No space left on device\)"):
        await call(WRITE, tool_env(tmp_path), path="a", content="new")
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"
