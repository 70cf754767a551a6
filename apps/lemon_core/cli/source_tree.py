"""Finding the source tree that `quality` and `architecture-docs` work on."""

from __future__ import annotations

from pathlib import Path

from lemon_core.commands import CommandContext
from lemon_core.errors import LemonError
from lemon_core.quality.policy import POLICY_PATH


class NoSourceTree(LemonError):
    """The command needs the source tree of Lemon and is not in one."""

    code = "no_source_tree"

    def __init__(self, where: Path) -> None:
        super().__init__(
            f"{where} is not in a source tree of Lemon (there is no {POLICY_PATH}): go there, or "
            "give --root"
        )


def source_tree(context: CommandContext, given: Path | None) -> Path:
    """The root of the tree: `given`, else the one around the user's folder, else `LEMON_PATH`.

    Raises `NoSourceTree`.
    """
    if given is not None:
        root = (context.cwd / given.expanduser()).resolve()
        if not (root / POLICY_PATH).is_file():
            raise NoSourceTree(root)
        return root
    here = context.cwd.resolve()
    configured = context.environ.get("LEMON_PATH", "").strip()
    candidates = [here, *here.parents]
    candidates += [context.paths.expand(configured)] if configured else []
    for root in candidates:
        if (root / POLICY_PATH).is_file():
            return root
    raise NoSourceTree(here)
