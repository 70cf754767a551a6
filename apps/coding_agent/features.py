"""How far a project's own list of features is: `FEATURE_REQUIREMENTS.json` in its directory.

The file belongs to the project. It is an object whose `features` are objects with `id`,
`description`, `status` (pending, in_progress, completed, failed) and `dependencies`; it is read and
never written here.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

FILE: Final = "FEATURE_REQUIREMENTS.json"
MAX_BYTES: Final = 1_048_576
STATUSES: Final = ("pending", "in_progress", "completed", "failed")


def feature_progress(cwd: str) -> dict[str, object]:
    """Counts by status, the share that is done in percent, and the ids that can be begun.

    Empty without a file; `{"error": …}` for one that cannot be understood. Blocking.
    """
    path = Path(cwd) / FILE
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    except OSError as exc:
        return {"error": f"{path}: cannot be read ({exc.strerror})"}
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return {"error": f"{path}: is no file of at most {MAX_BYTES >> 20} MiB"}
        data = file.read()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as exc:
        return {"error": f"{path}: is not JSON ({exc})"}
    features = document.get("features") if isinstance(document, dict) else None
    if not isinstance(features, list):
        return {"error": f"{path}: holds no list of features"}
    return _counted([each for each in features if isinstance(each, dict)])


def _counted(features: Sequence[Mapping[str, object]]) -> dict[str, object]:
    known = {str(each.get("id", number)): each for number, each in enumerate(features)}
    states = {name: _status(each) for name, each in known.items()}
    done = {name for name, status in states.items() if status == "completed"}
    counts = {status: list(states.values()).count(status) for status in STATUSES}
    ready = [
        name
        for name, status in states.items()
        if status == "pending" and _needs(known[name]) <= done
    ]
    total = len(states)
    share = round(100 * len(done) / total) if total else 0
    return {"total": total, **counts, "percentage": share, "actionable": ready}


def _status(feature: Mapping[str, object]) -> str:
    status = feature.get("status")
    return status if isinstance(status, str) and status in STATUSES else "pending"


def _needs(feature: Mapping[str, object]) -> set[str]:
    needs = feature.get("dependencies")
    return {str(each) for each in needs} if isinstance(needs, list) else set()
