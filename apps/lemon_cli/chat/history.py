"""What was typed before, in a file for its owner's eyes alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

FILE_NAME: Final = "chat_history"
MAX_BYTES: Final = 1024 * 1024


def open_history(folder: Path) -> History:
    """The history kept in `folder`; one of this process alone when that cannot be written."""
    path = folder / FILE_NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
        if path.stat().st_size > MAX_BYTES:
            _shorten(path)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _shorten(path: Path) -> None:
    """Keep the newer half; entries begin with a blank line."""
    text = path.read_bytes()[-MAX_BYTES // 2 :]
    path.write_bytes(text[text.find(b"\n\n") + 1 :])
