"""The assistant's home: the files in which it keeps who it is and whom it works for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TEMPLATES: Final = (
    "AGENTS.md",
    "SOUL.md",
    "TOOLS.md",
    "IDENTITY.md",
    "USER.md",
    "HEARTBEAT.md",
    "BOOTSTRAP.md",
)
_FOLDER: Final = Path(__file__).parent / "templates"


def ensure_workspace(directory: Path) -> list[str]:
    """Write what is missing of the assistant's files; the names of those that were.

    A file that is there stays as it is, whatever is in it. Raises OSError when the folder cannot be
    written.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    created = []
    for name in TEMPLATES:
        text = (_FOLDER / name).read_text(encoding="utf-8")
        try:
            file = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with open(file, "w", encoding="utf-8") as target:
            target.write(text)
        created.append(name)
    return created
