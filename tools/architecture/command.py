"""The checks of lemon_core.quality as build actions.

command.py imports APP REPORT       imports and unused deps of one app
command.py edges REPORT EDGES…      edges files of the build against the parsed BUILD files
command.py render TABLE EDGES…      the table of docs/architecture_boundaries.md
command.py fresh REPORT TABLE       that table against the document
command.py update TABLE             write it into the document (`bazel run //docs:update`)

The repository is the working directory. A report is empty when nothing is wrong, and the exit code
is 0 either way: a test tells the report.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lemon_core.quality import ArchitecturePolicy, CheckReport, architecture, edges_file, table
from lemon_core.quality.edges_file import DeclaredEdges


def main(arguments: Sequence[str]) -> int:
    """Run one command; 2 for a call that is none of them."""
    match arguments:
        case ["imports", app, report]:
            with _real_tree() as root:
                _write(report, architecture.check_imports(root, app))
        case ["edges", report, *files]:
            with _real_tree() as root:
                _write(report, edges_file.check(root, map(Path, files)))
        case ["render", target, *files]:
            declared = [DeclaredEdges.load(Path(file)) for file in files]
            edges = {one.app: one.edges() for one in declared}
            text = table.render(ArchitecturePolicy.load(Path.cwd()), edges)
            Path(target).write_text(text, "utf-8")
        case ["fresh", report, source]:
            _write(report, table.check_table(Path.cwd(), Path(source).read_text("utf-8")))
        case ["update", source]:
            _update(Path(source).read_text("utf-8"))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def _write(target: str, report: CheckReport) -> None:
    Path(target).write_text("".join(f"{issue}\n" for issue in report.issues), "utf-8")


def _update(text: str) -> None:
    # Set by `bazel run`: the checkout, and not the copy this program runs in.
    root = Path(os.environ["BUILD_WORKSPACE_DIRECTORY"])
    changed = table.update(root, text)
    print(f"{table.DOC_PATH}: {'updated' if changed else 'is up to date'}")


@contextlib.contextmanager
def _real_tree() -> Iterator[Path]:
    """A copy of the sources: a sandbox is made of symlinks, and the checks skip those."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("apps", "tools"):
            if Path(name).is_dir():
                shutil.copytree(name, Path(folder) / name)
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
