"""The names of commands that the user has written: what they mean is the agent's business.

A message that calls one is sent as it was written; the run reads the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = "command"
MAX_NAMES: Final = 200


def own_commands(agent_dir: Path, cwd: Path) -> list[str]:
    """The names for work in `cwd`, sorted; nothing of the files is read."""
    names: set[str] = set()
    for folder in (agent_dir / FOLDER, cwd / ".lemon" / FOLDER):
        try:
            names.update(file.stem for file in folder.glob("*.md"))
        except OSError:
            continue
    return sorted(names)[:MAX_NAMES]
