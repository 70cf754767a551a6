"""The assistant's own files, which tools name without saying where they are.

`MEMORY.md`, `USER.md` and `memory/…` mean those in the assistant's home, wherever a run works;
`./MEMORY.md` is the project's. What only the project has is meant without that, too: a folder of
sources may be called `memory`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

FILES: Final = frozenset({"MEMORY.md", "USER.md"})
# Found in the home when the project has none of its own.
FALLBACK_FILES: Final = frozenset({"SOUL.md"})
FOLDER: Final = "memory"
_DAILY: Final = re.compile(r"memory/(\d{4}-\d{2}-\d{2})\.md")


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """`home` is a real path."""

    home: Path

    @property
    def readable(self) -> tuple[Path, ...]:
        """What any run may read there."""
        names = sorted(FILES | FALLBACK_FILES)
        return (*(self.home / name for name in names), self.home / FOLDER)

    def meant_by(self, text: str, cwd: Path) -> Path | None:
        """The own file that `text` means; None when it means a file of the project."""
        if text in FALLBACK_FILES:
            return None if (cwd / text).exists() else self.home / text
        in_folder = text == FOLDER or text.startswith(f"{FOLDER}/")
        if text not in FILES and not in_folder:
            return None
        own = self.home / text
        if _DAILY.fullmatch(text) or own.exists():
            return own
        project = cwd / FOLDER if in_folder else cwd / text
        return None if project.exists() else own


def is_recent_note(text: str, now_ms: int) -> bool:
    """Whether `text` names the note of today or of yesterday, which need not have been begun."""
    named = _DAILY.fullmatch(text)
    today = datetime.fromtimestamp(now_ms / 1000).astimezone().date()
    return named is not None and named[1] in (
        today.isoformat(),
        (today - timedelta(days=1)).isoformat(),
    )
