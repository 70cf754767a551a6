"""Pictures by path."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from lemon_cli.chat import attachments
from lemon_cli.chat.attachments import BadImage, load_image, named_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "with space.JPG", "notes.txt"):
        (tmp_path / name).write_bytes(b"data")
    (tmp_path / "empty.gif").touch()
    return tmp_path


def test_a_message_names_its_pictures(folder: Path) -> None:
    text = 'compare @a.png, @"with space.JPG" and @~/a.png; not me@a.png, @notes.txt, @none.png'
    found = named_images(text, folder, folder)
    assert [each.name for each in found] == ["a.png", "with space.JPG", "~/a.png"]
    assert [each.image.mime_type for each in found] == ["image/png", "image/jpeg", "image/png"]
    assert base64.b64decode(found[0].image.data) == b"data"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.png", "No such file"),
        ("notes.txt", "only .png"),
        ("empty.gif", "is empty"),
        ("a.png", "larger than"),
    ],
)
def test_what_cannot_be_sent_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.setattr(attachments, "MAX_BYTES", 3)
    with pytest.raises(BadImage, match=reason):
        load_image(name, folder, folder)


def test_pictures_have_a_limit_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "MAX_BYTES", 7)
    with pytest.raises(BadImage, match="together"):
        named_images("@a.png @~/a.png @a.png", folder, folder)
