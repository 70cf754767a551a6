"""`install.sh` with small releases of a server of our own (specification lemon_cli 7, 10.18)."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from lemon_core.testing.releases import (
    ReleaseServer,
    archive_of,
    member,
    release_server,
)
from lemon_core.testing.terminal import terminal
from lemon_core.update_manifest import Machine as Target
from tools.release.tests.installing import (
    INSTALLER,
    PYTHON,
    Machine,
    new_machine,
    release_json,
    script_of,
)

pytestmark = pytest.mark.anyio

OLD, NEW = "2026.10.3", "2026.11.0"
PLATFORM = Target.here("p").platform
INSTALLED = {"current": NEW, "versions": [NEW, "current", "source"], "tmp": []}


@pytest.fixture
async def server() -> AsyncIterator[ReleaseServer]:
    async with release_server() as running:
        offer(running)
        yield running


@pytest.fixture
def machine(server: ReleaseServer) -> Iterator[Machine]:
    with new_machine() as new:
        yield new.with_environ(LEMON_INSTALL_BASE_URL=server.url)


def offer(
    server: ReleaseServer,
    version: str = NEW,
    archive: bytes | None = None,
    *,
    folder: str = "stable/latest/",
    manifest: dict[str, object] | None = None,
    **artifact: object,
) -> None:
    """Offer a release that fits this machine, with some of it replaced."""
    server.offer(
        version,
        archive,
        folder=folder,
        manifest=release_json(version, **(manifest or {})),
        **{"platform": PLATFORM, "profile": "runtime_full", "glibc_min": None, **artifact},
    )


@pytest.mark.behaviour("lemon_cli.18")
async def test_a_fresh_installation(machine: Machine) -> None:
    done = await machine.install()
    assert (done.code, done.out) == (0, ""), done
    assert done.err.splitlines() == [
        f"install: downloading lemon-{NEW}.tar.gz",
        "install: unpacking",
        f"install: Lemon {NEW} is installed: {machine.lemon}/bin/lemon",
        "install: to have it on PATH: . ~/.lemon/env",
        # There is no terminal: what comes next is told and not done.
        f"install: next: {machine.lemon}/bin/lemon setup",
    ]
    assert machine.seen() == INSTALLED
    assert os.readlink(machine.lemon / "bin" / "lemon") == "../versions/current/bin/lemon"
    assert (await machine.run(machine.lemon / "bin" / "lemon")).out == f"{NEW}\n"
    assert sorted(path.name for path in machine.home.iterdir()) == [".lemon"]
    for folder in (machine.lemon, machine.lemon / "run"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((machine.lemon / "env").stat().st_mode) == 0o600
    found = await machine.run("sh", "-c", ". ~/.lemon/env; . ~/.lemon/env; lemon; echo $PATH")
    assert found.out.splitlines() == [NEW, f"{machine.lemon}/bin:{machine.programs}"]


@pytest.mark.behaviour("lemon_cli.18")
async def test_installing_again_downloads_nothing_and_keeps_the_users_files(
    machine: Machine, server: ReleaseServer
) -> None:
    await machine.install()
    (machine.lemon / "env").write_text("mine")
    mark = machine.lemon / "versions" / NEW / "mark"
    mark.touch()
    server.requests.clear()
    again = await machine.install()
    assert (again.code, server.requests) == (0, ["stable/latest/manifest.json"])
    assert "is here already" in again.err
    assert mark.exists()
    assert (machine.lemon / "env").read_text() == "mine"
    forced = await machine.install("--force")
    assert (forced.code, server.requests[1:]) == (
        0,
        ["stable/latest/manifest.json", f"stable/latest/lemon-{NEW}.tar.gz"],
    )
    assert not mark.exists()
    assert machine.seen() == INSTALLED


@pytest.mark.behaviour("lemon_cli.18")
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"sha256": "0" * 64}, "does not have the checksum"),
        ({"sha256": None}, "names no checksum"),
        ({"file": "../x"}, "names a file"),
        ({"platform": "plan9-x86_64"}, "has no archive for"),
        ({"glibc_min": "99.1"}, "needs glibc 99.1"),
        ({"manifest": {"schema": 1}}, "another schema"),
        ({"manifest": {"channel": "nightly"}}, "of channel 'nightly'"),
        ({"manifest": {"python": "3.99"}}, "needs Python 3.99, which is not there"),
        ({"archive": b"no archive"}, "cannot be unpacked"),
        ({"archive": archive_of([member("lib/x", b"")])}, "has no bin/lemon"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--force",)])
async def test_what_is_in_use_stays_when_something_is_wrong(
    machine: Machine,
    server: ReleaseServer,
    broken: dict[str, object],
    said: str,
    options: tuple[str, ...],
) -> None:
    offer(server, OLD)
    assert (await machine.install()).code == 0
    before = machine.seen()
    offer(server, NEW, **broken)  # type: ignore[arg-type]  # each row is right for one of them
    done = await machine.install(*options)
    assert done.code == 1, done
    assert said in done.err.splitlines()[-1]
    assert machine.seen() == before
    assert (await machine.run(machine.lemon / "bin" / "lemon")).out == f"{OLD}\n"


@pytest.mark.behaviour("lemon_cli.18")
async def test_setup_follows_on_a_terminal_unless_it_is_skipped(
    machine: Machine, server: ReleaseServer
) -> None:
    program = b'#!/bin/sh\nread -r line && echo "lemon $* heard $line"\n'
    offer(server, NEW, archive_of([member("bin/lemon", program, mode=0o755)]))
    environ = {"HOME": str(machine.home), "PATH": str(machine.programs), **machine.environ}
    command = [machine.programs / "sh", INSTALLER]
    async with terminal(command, environ) as screen:
        screen.enter("yes")
        assert await screen.end() == 0
        assert "lemon setup heard yes" in screen.text
    async with terminal([*command, "--skip-setup"], environ) as screen:
        assert await screen.end() == 0
        assert "heard" not in screen.text
        assert f"next: {machine.lemon}/bin/lemon setup" in screen.text.replace("\n", "")


async def test_an_exact_version_of_a_channel(machine: Machine, server: ReleaseServer) -> None:
    offer(server, OLD, folder=f"nightly/{OLD}/", manifest={"channel": "nightly"}, profile="min")
    nightly = machine.with_environ(LEMON_CHANNEL="nightly", LEMON_PROFILE="min")
    refused = await nightly.install()
    assert (refused.code, refused.err) == (
        1,
        "install: the channel nightly needs an exact version: set LEMON_VERSION\n",
    )
    done = await nightly.with_environ(LEMON_VERSION=OLD).install()
    assert (done.code, machine.seen()["current"]) == (0, OLD), done


async def test_a_folder_can_be_the_source(machine: Machine, server: ReleaseServer) -> None:
    folder = machine.root / "releases"
    for name, content in server.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    local = machine.with_environ(LEMON_INSTALL_BASE_URL=f"file://{folder}")
    assert (await local.install()).code == 0
    # An update asks servers only.
    assert machine.seen() == {**INSTALLED, "versions": [NEW, "current"]}
    assert server.requests == []


async def test_an_unknown_option_is_a_usage_error(machine: Machine) -> None:
    done = await machine.install("--frobnicate")
    assert (done.code, done.err.splitlines()[-1]) == (2, "install: unknown option --frobnicate")
    assert done.err.startswith("usage: install.sh")
    told = await machine.install("--help")
    assert (told.code, told.out.splitlines()[0]) == (0, "usage: install.sh [OPTIONS]")
    assert machine.seen() == {}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"LEMON_INSTALL_BASE_URL": ""}, "where are the releases?"),
        ({"LEMON_INSTALL_BASE_URL": "http://example.org"}, "is neither an https address"),
        ({"LEMON_INSTALL_BASE_URL": "http://127.0.0.1.example.org"}, "is neither an https address"),
        ({"LEMON_CHANNEL": "beta"}, "no channel beta"),
        ({"LEMON_PROFILE": "tiny"}, "no profile tiny"),
        (
            {"LEMON_PYTHON": "/nowhere/python"},
            f"needs Python {PYTHON}, and /nowhere/python is none",
        ),
        ({"HOME": ""}, "HOME is not set"),
    ],
)
async def test_each_refusal_is_one_line(
    machine: Machine, environ: dict[str, str], said: str
) -> None:
    done = await machine.with_environ(**environ).install()
    assert (done.code, len(done.err.splitlines())) == (1, 1), done
    assert said in done.err


@pytest.mark.parametrize("missing", ["curl", "tar", "python3"])
async def test_a_missing_program_is_named(machine: Machine, missing: str) -> None:
    (machine.programs / missing).unlink()
    done = await machine.install()
    assert (done.code, done.err) == (
        1,
        f"install: {missing} is not there: install it and try again\n",
    )


async def test_a_newer_c_library_can_be_ignored(machine: Machine, server: ReleaseServer) -> None:
    offer(server, NEW, glibc_min="99.1")
    assert (await machine.with_environ(LEMON_INSTALL_IGNORE_GLIBC="1").install()).code == 0


async def test_new_shells_find_lemon_when_that_is_wanted(machine: Machine) -> None:
    (machine.home / ".profile").write_text("# mine\n")
    for _ in range(2):
        assert (await machine.with_environ(SHELL="/bin/zsh").install("--modify-path")).code == 0
    line = '. "$HOME/.lemon/env"\n'
    assert (machine.home / ".profile").read_text() == f"# mine\n{line}"
    assert (machine.home / ".zshenv").read_text() == line


async def test_only_one_installation_at_a_time(machine: Machine) -> None:
    versions = machine.lemon / "versions"
    versions.mkdir(parents=True)
    script = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    python = machine.programs / "python3"
    async with await anyio.open_process([python, "-c", script, versions / ".lock"]) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        with anyio.fail_after(5):
            assert await holder.stdout.receive() == b"held\n"
        done = await machine.install()
        await holder.stdin.aclose()
    assert (done.code, done.err) == (
        1,
        "install: another installation or update is at work: wait for its end\n",
    )


async def test_an_interrupted_download_leaves_nothing(
    machine: Machine, server: ReleaseServer
) -> None:
    server.cut.add(f"stable/latest/lemon-{NEW}.tar.gz")
    # Nobody waits for what has been cut on purpose.
    (machine.programs / "curl").rename(machine.programs / "real")
    script_of(machine, "curl", f'#!/bin/sh\nexec {machine.programs}/real "$@" --retry 0\n')
    done = await machine.install()
    assert (done.code, done.err.splitlines()[-1][-17:]) == (1, "cannot be fetched"), done
    assert machine.seen() == {"current": None, "versions": [], "tmp": []}


async def test_a_release_that_does_not_start_is_not_put_to_use(
    machine: Machine, server: ReleaseServer
) -> None:
    offer(server, OLD)
    await machine.install()
    program = b"#!/bin/sh\necho no such thing\nexit 3\n"
    offer(server, NEW, archive_of([member("bin/lemon", program, mode=0o755)]))
    before = machine.seen()
    done = await machine.install("--verify")
    assert done.code == 1
    assert done.err.splitlines()[-2:] == [
        "no such thing",
        f"install: Lemon {NEW} does not start: what is in use stays",
    ]
    assert machine.seen() == before
