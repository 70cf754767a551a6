"""Pictures by path: `@path` inside a message, or a path on its own."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lemon_core.errors import LemonError
from lemon_core.runs import Image

# What a message may hold beside them on its way to a server (16 MiB as base64).
MAX_BYTES: Final = 8 * 1024 * 1024
TYPES: Final = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_MARK: Final = re.compile(r'(?<!\S)@(?:"([^"]+)"|(\S+))')


class BadImage(LemonError):
    """A picture that cannot be sent."""

    code = "bad_image"


@dataclass(frozen=True, slots=True)
class Attached:
    """A picture and how the person named it."""

    name: str
    image: Image


def load_image(name: str, cwd: Path, home: Path) -> Attached:
    """The picture at `name`; raises `BadImage`."""
    path = _path(name, cwd, home)
    mime = TYPES.get(path.suffix.lower())
    if mime is None:
        raise BadImage(f"{name}: only {', '.join(TYPES)} can be sent")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadImage(f"{name}: larger than {MAX_BYTES // 1024 // 1024} MiB")
        data = path.read_bytes()
    except OSError as exc:
        raise BadImage(f"{name}: {exc.strerror or exc}") from exc
    if not data:
        raise BadImage(f"{name}: is empty")
    text = base64.b64encode(data).decode("ascii")
    return Attached(name, Image(data=text, mime_type=mime))


def named_images(text: str, cwd: Path, home: Path) -> list[Attached]:
    """The pictures that a message names with `@`; other words with an `@` stay what they are.

    Raises `BadImage` for a picture that is there and cannot be sent.
    """
    found: list[Attached] = []
    for match in _MARK.finditer(text):
        name = match[1] or match[2].rstrip(".,;:!?)")
        path = _path(name, cwd, home)
        if path.suffix.lower() in TYPES and path.is_file():
            found.append(load_image(name, cwd, home))
    if sum(len(each.image.data) for each in found) > MAX_BYTES * 4 // 3 + 4:
        raise BadImage(f"the pictures are larger than {MAX_BYTES // 1024 // 1024} MiB together")
    return found


def _path(name: str, cwd: Path, home: Path) -> Path:
    path = home / name[2:] if name.startswith("~/") else Path(name)
    return cwd / path
