"""All commands of the package, on a machine that has only Python (specification lemon_cli 10)."""

from __future__ import annotations

import json
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from lemon_core.testing import socket_dir
from tools.release.tests.installing import Ended, Machine

pytestmark = pytest.mark.anyio

CANARY: Final = "sk-canary-0123456789abcdef"
# Each command that does one thing and ends, with arguments that let it do that in a new home; what
# starts a runtime or a server, and what a terminal is needed for, is not among them.
ONE_SHOTS: Final = (
    "approvals list",
    "architecture-docs --check --root tree",
    "checkpoint list --json",
    "completion bash",
    "config show",
    "config validate",
    "doctor",
    "extension validate --json tree",
    "feedback stats --json",
    "introspection",
    "model openai --token x",
    "models",
    "providers",
    "quality --json --root tree",
    "readiness",
    "runs list",
    "secrets list",
    "sessions list",
    "setup -n",
    "status",
    "stop",
    "store migrate old",
    "update --check",
    "usage",
    "version",
    "voice secrets",
    "workspace init",
)
STARTING: Final = {"chat", "daemon", "restart", "run", "start"}
RUNTIME_APPS: Final = {
    "coding_agent",
    "lemon_control_plane",
    "lemon_gateway",
    "lemon_router",
    "lemon_web",
}
OWNERS: Final = {
    "checkpoint": {"coding_agent"},
    "feedback": {"lemon_router"},
    "voice": {"lemon_gateway"},
}
# A gRPC server is made in C, which tells no hook: the modules that make one are the sign of it.
SERVERS: Final = {"uvicorn", "lemon_core.http.server", "lemon_core.rpc.serving"}

# Begins the launcher as `lemon` does, and tells what it did with sockets and imports.
WATCH: Final = """
import os, sys
bound = []
sys.addaudithook(lambda event, args: bound.append(event) if event == "socket.bind" else None)
launcher = sys.argv[1]
del sys.argv[0]
names = {"__file__": launcher, "__name__": "__main__"}
try:
    exec(compile(open(launcher).read(), launcher, "exec"), names)
finally:
    import json
    with open(os.environ["WATCHED"], "w") as file:
        json.dump({"bound": bound, "modules": sorted(sys.modules)}, file)
"""


@pytest.fixture
def new_home(machine: Machine) -> Iterator[Machine]:
    """The same machine with a home that nobody used yet."""
    with socket_dir() as root:
        (root / "bin").symlink_to(machine.programs)
        new = Machine(root)
        new.home.mkdir()
        yield new


def put_folders(home: Path) -> None:
    """What some of the commands look at: a source tree of Lemon and an older store."""
    policy = home / "tree" / "tools" / "architecture" / "policy.bzl"
    policy.parent.mkdir(parents=True)
    policy.write_text("ALLOWED = {}\nREFERENCE_ONLY = {}\nFINAL = {}\n")
    (home / "old").mkdir()
    (home / "old" / "runs.jsonl").touch()


async def watched(
    machine: Machine, package: Path, *words: str
) -> tuple[Ended, dict[str, list[str]]]:
    """A command, and what it did."""
    report = machine.root / "watched.json"
    user = machine.with_environ(WATCHED=str(report))
    python = machine.programs / "python3"
    ended = await user.run(python, "-I", "-S", "-B", "-c", WATCH, package / "bin" / "lemon", *words)
    found: dict[str, list[str]] = json.loads(report.read_text())
    return ended, found


def profile(package: Path) -> dict[str, Any]:
    """The profile that the package runs."""
    built = package / "lib" / "app" / "tools" / "release" / "built" / "runtime_min.toml"
    return tomllib.loads(built.read_text())


def owners(word: str, package: Path) -> set[str]:
    """The apps of a runtime that a command may import: its own, or those that bring checks."""
    if word in ("doctor", "readiness"):
        checks = profile(package).get("doctor_checks", ())
        return {path.partition(".")[0] for path in checks} & RUNTIME_APPS
    return OWNERS.get(word, set())


def test_every_command_is_looked_at(package: Path) -> None:
    commands = {row["name"] for row in profile(package)["commands"]}
    assert {line.split()[0] for line in ONE_SHOTS} == commands - STARTING


@pytest.mark.behaviour("lemon_cli.2", "lemon_cli.3")
@pytest.mark.parametrize("line", ONE_SHOTS)
async def test_a_one_shot_opens_no_port_and_imports_no_runtime(
    new_home: Machine, package: Path, line: str
) -> None:
    words = line.split()
    put_folders(new_home.home)
    ended, did = await watched(new_home, package, *words)
    # 1: a look that found something, or what needs a server.
    assert ended.code in (0, 1), ended
    assert "Traceback" not in ended.err
    if "--json" in words:
        json.loads(ended.out)
    assert (did["bound"], SERVERS.intersection(did["modules"])) == ([], set())
    heads = {name.partition(".")[0] for name in did["modules"]}
    assert heads & RUNTIME_APPS == owners(words[0], package)


@pytest.mark.behaviour("lemon_cli.1")
async def test_the_help_of_an_apps_command_touches_nothing(
    new_home: Machine, package: Path
) -> None:
    lemon = package / "bin" / "lemon"
    for words in (["--help"], ["-h"], ["help"]):
        told = await new_home.run(lemon, "checkpoint", *words)
        assert (told.code, told.err) == (0, "")
        assert told.out.startswith("Usage: lemon checkpoint ")
    wrong = await new_home.run(lemon, "checkpoint", "--no-such-option")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("Usage: lemon checkpoint ")
    assert list(new_home.home.iterdir()) == []


@pytest.mark.behaviour("lemon_cli.12")
async def test_the_doctor_and_its_bundle(new_home: Machine, package: Path) -> None:
    lemon = package / "bin" / "lemon"
    user = new_home.with_environ(OPENAI_API_KEY=CANARY)
    failing = await user.run(lemon, "doctor", "--json")
    report = json.loads(failing.out)
    assert (failing.code, report["overall"]) == (1, "fail")
    assert sorted(report["summary"]) == ["fail", "pass", "skip", "warn"]
    assert sorted(report["checks"][0]) == ["message", "name", "remediation", "status"]
    wrong = await user.run(lemon, "doctor", "mine.zip")
    assert (wrong.code, wrong.out) == (2, "")
    assert (await user.run(lemon, "secrets", "init")).code == 0
    assert (await user.run(lemon, "secrets", "set", "BOX_KEY", CANARY)).code == 0
    (new_home.lemon / "config.toml").write_text(
        f'[providers.box]\napi_key = "{CANARY}"\nbase_url = "https://u:{CANARY}@box/v1"\n'
    )
    await user.run(lemon, "doctor", "--bundle", "mine.zip")
    with zipfile.ZipFile(new_home.home / "mine.zip") as bundle:
        names = bundle.namelist()
        assert names
        for name in names:
            assert CANARY.encode() not in bundle.read(name), name
