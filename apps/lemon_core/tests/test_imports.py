"""Importing starts nothing, opens nothing and reads no environment (specification lemon_core 1)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lemon_core import errors

APP = Path(errors.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(APP.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in APP.rglob("*.py")
    if "tests" not in path.relative_to(APP).parts[:1]
)

# Runs in a process of its own: imports the modules that its input names and prints what they did.
# An act counts when the code that asked for it is Lemon's: going outwards from the act, a Lemon
# frame comes before any frame of the import system. What a library does while it is itself being
# imported is that library's affair, and so is reading the modules' own files.
WATCHER = """
import importlib, json, os, sys, threading

root, names, warm = json.load(sys.stdin)
for name in warm:
    importlib.import_module(name)
import pydantic
class Warm(pydantic.BaseModel):  # pydantic looks for its plugins at the first model
    field: int

acts = []
WATCHED = (
    "open", "socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn",
    "os.system", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.chmod", "os.link", "os.symlink", "os.truncate", "os.utime", "os.kill", "os.putenv",
    "os.unsetenv", "sqlite3.", "tempfile.", "shutil.", "fcntl.", "signal.",
)

def note(what):
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(("<frozen importlib", "<frozen zipimport")):
            return
        if file.startswith(root):
            acts.append(f"{file}:{frame.f_lineno}: {what}")
            return
        frame = frame.f_back

def audit(event, args):
    if event.startswith(WATCHED):
        note(f"{event} {args[:1]!r}")

def watched(kind, name):
    inner = getattr(kind, name)
    def wrapper(self, *args, **kwargs):
        # pydantic asks for its own switch at each class that is made of a model.
        if args[:1] != ("PYDANTIC_DISABLE_PLUGINS",):
            note(f"{kind.__name__}.{name} {args[:1]!r}")
        return inner(self, *args, **kwargs)
    setattr(kind, name, wrapper)

environment = type(os.environ)
for name in ("__getitem__", "__iter__", "__len__", "__setitem__", "__delitem__", "__contains__"):
    if hasattr(environment, name):
        watched(environment, name)
watched(threading.Thread, "start")
sys.addaudithook(audit)
threads = set(threading.enumerate())
for name in names:
    importlib.import_module(name)
acts += [f"thread {thread.name}" for thread in set(threading.enumerate()) - threads]
print(json.dumps(acts))
"""

# Imported before the watch begins, because they look around when they are used the first time.
WARM = ["anyio", "grpc", "pydantic", "typer"]

GUILTY = """
import os, socket, threading
from pathlib import Path
HOME = os.environ.get("HOME")
KNOWN = "PATH" in os.environ
PATHS = list(os.environ)
TEXT = Path(__file__).read_text()
FOLDER = os.listdir("/")
SOCKET = socket.socket()
THREAD = threading.Thread(target=print)
THREAD.start()
THREAD.join()
"""


def acts(root: Path, names: list[str], path: list[str]) -> list[str]:
    """What the modules `names` below `root` do when they are imported."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHER],
        input=json.dumps([str(root), names, WARM]),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={"PYTHONPATH": ":".join(path), "HOME": "/nonexistent", "PATH": "/nonexistent"},
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.behaviour("lemon_core.44")
def test_importing_every_module_does_nothing() -> None:
    assert {"lemon_core.boot", "lemon_core.rpc.serving", "lemon_core.testing"} <= set(MODULES)
    assert acts(APP, MODULES, sys.path) == []


@pytest.mark.behaviour("lemon_core.44")
def test_the_watch_sees_what_it_watches_for(tmp_path: Path) -> None:
    (tmp_path / "guilty.py").write_text(GUILTY)
    found = acts(tmp_path, ["guilty"], [str(tmp_path), *sys.path])
    seen = {(int(line.split(":")[1]), line.split(" ")[1]) for line in found}
    assert seen >= {
        (4, "_Environ.__getitem__"),
        (5, "_Environ.__getitem__"),
        (6, "_Environ.__iter__"),
        (7, "open"),
        (8, "os.listdir"),
        (9, "socket.__new__"),
        (11, "Thread.start"),
    }
