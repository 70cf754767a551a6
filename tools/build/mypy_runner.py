"""Runs mypy for one library inside a build action, on top of the caches of what it depends on.

`mypy_runner.py PARAMS`, a JSON file; all its paths are relative to the working directory:

    {"sources": [...], "search_path": [...], "packages": [...], "caches": [...],
     "config": "pyproject.toml", "cache": "out.db", "report": "out.txt"}

The theory: mypy trusts a cached module without looking at its source when it is told `--bazel`,
because Bazel gives an action the caches that fit its sources. A cache is one SQLite file. Those of
the dependencies are poured into one, mypy adds what it had to analyse itself, and only that is
written out. So each module is analysed once, by the library that owns it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

# One shard, so that a cache is one file.
_MYPY = ("-m", "mypy", "--bazel", "--sqlite-cache", "--sqlite-num-shards=1")
# Only the library's own sources are reported on; its dependencies have reports of their own.
_OPTIONS = ("--follow-imports=silent", "--no-error-summary", "--show-error-codes", "--no-pretty")
_DATABASE = "cache.db"


def main(arguments: Sequence[str]) -> int:
    """Write report and cache; 0 also when mypy found errors, for the test tells them."""
    params = json.loads(Path(arguments[0]).read_text("utf-8"))
    here = Path.cwd()
    with _workplace(here) as place:
        inherited = _pour([here / cache for cache in params["caches"]], place / _DATABASE)
        done = subprocess.run(
            _command(params, place),
            cwd=place,
            env=_environment(params, place),
            capture_output=True,
            text=True,
            check=False,
        )
        # A file that does not parse ends mypy with 2 as a wrong call does, but it is a report.
        if done.returncode > 1 and done.stderr:
            sys.stderr.write(done.stdout + done.stderr)
            return 2
        _keep_new(place / _DATABASE, inherited, here / params["cache"])
    (here / params["report"]).write_text(done.stdout, "utf-8")
    return 0


@contextlib.contextmanager
def _workplace(here: Path) -> Iterator[Path]:
    """A folder with a link for everything in the action's working directory.

    mypy writes absolute paths into its cache, and the action's own folder is another one each time.
    This one has the same name in every action, so a module's cache does not depend on who wrote it.
    In Bazel's sandbox /tmp is private; elsewhere the lock makes actions take turns.
    """
    place = Path(tempfile.gettempdir()) / f"lemon-mypy-{os.getuid()}"
    with Path(f"{place}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        try:
            for entry in here.iterdir():
                (place / entry.name).symlink_to(entry)
            yield place
        finally:
            shutil.rmtree(place)


def _command(params: dict[str, list[str]], place: Path) -> list[str]:
    sources = place / "sources.txt"
    sources.write_text("\n".join(params["sources"]), "utf-8")
    config = f"--config-file={params['config']}"
    return [sys.executable, "-S", *_MYPY, *_OPTIONS, config, f"@{sources.name}"]


def _environment(params: dict[str, list[str]], place: Path) -> dict[str, str]:
    return {
        **os.environ,
        # mypy runs out of the same packages that it looks types up in.
        "PYTHONPATH": os.pathsep.join(str(place / folder) for folder in params["packages"]),
        "MYPYPATH": os.pathsep.join(params["search_path"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


def _pour(caches: Sequence[Path], database: Path) -> dict[str, bytes]:
    """Fill `database` from `caches`, the first of them whole; return what is in it then."""
    if not caches:
        return {}
    shutil.copyfile(caches[0], database)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        for cache in caches[1:]:
            connection.execute("ATTACH ? AS other", (str(cache),))
            connection.execute("INSERT OR IGNORE INTO files2 SELECT * FROM other.files2")
            connection.commit()
            connection.execute("DETACH other")
        return dict(connection.execute("SELECT path, data FROM files2"))


def _keep_new(database: Path, inherited: dict[str, bytes], target: Path) -> None:
    """Write the rows that were not inherited, in a fixed order and without times."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT path, data FROM files2 ORDER BY path").fetchall()
    with contextlib.closing(sqlite3.connect(target)) as connection:
        connection.execute("CREATE TABLE files2 (path TEXT UNIQUE NOT NULL, mtime REAL, data BLOB)")
        connection.executemany(
            "INSERT INTO files2 VALUES (?, 0.0, ?)",
            ((path, data) for path, data in rows if inherited.get(path) != data),
        )
        connection.commit()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
