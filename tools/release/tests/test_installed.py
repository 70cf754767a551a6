"""The package as install.sh installs it, and its updates (specification lemon_cli 7, 10.17)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lemon_ai.testing import FakeChatServer, Turn
from lemon_core.testing.releases import (
    ReleaseServer,
    archive_of,
    member,
    release,
    release_server,
)
from lemon_core.update_archive import unpack
from lemon_core.update_manifest import Machine as Target
from lemon_core.version import __version__
from tools.release.assemble import manifest
from tools.release.tests.installing import Machine, new_machine, release_json, script_of

pytestmark = pytest.mark.anyio

OLDER, OLD, NEW = "2020.01.0", "2020.01.1", "2099.01.0"
BUILT = Path("tools/release").absolute()
PLATFORM = Target.here("p").platform


@pytest.fixture(scope="module")
def facts() -> dict[str, object]:
    """What the build says of its archive."""
    found: dict[str, object] = json.loads((BUILT / "lemon_runtime_min.facts.json").read_text())
    return found


@pytest.fixture
async def server() -> AsyncIterator[ReleaseServer]:
    async with release_server() as running:
        yield running


@pytest.fixture(scope="module")
def unpacked() -> Iterator[Machine]:
    """A machine with the package in its place, without the installer."""
    with new_machine() as machine:
        folder = machine.lemon / "versions" / __version__
        folder.parent.mkdir(parents=True)
        (machine.lemon / "tmp").mkdir()
        (archive,) = BUILT.glob("lemon-*.tar.gz")
        unpack(archive, folder, check=lambda: None)
        yield machine


@pytest.fixture
def installed(unpacked: Machine, server: ReleaseServer) -> Machine:
    """The package in use, with two older releases beside it and a source of updates."""
    versions = unpacked.lemon / "versions"
    for version in (OLDER, OLD):
        program = versions / version / "bin" / "lemon"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)
    (versions / "current").unlink(missing_ok=True)
    (versions / "current").symlink_to(__version__)
    (versions / "source").write_text(f"{server.url}/{{channel}}/{{version}}/manifest.json\n")
    return unpacked


def offer(server: ReleaseServer, archive: bytes | None = None, **changes: object) -> None:
    """Offer a small newer release for this machine."""
    given = changes.pop("manifest", {})
    assert isinstance(given, dict)
    server.offer(
        NEW,
        archive,
        folder="stable/latest/",
        manifest=release_json(NEW, **given),
        **{"platform": PLATFORM, "profile": "runtime_min", "glibc_min": None, **changes},
    )


@pytest.mark.behaviour("lemon_cli.18")
async def test_the_installer_puts_the_package_to_use(
    server: ReleaseServer, facts: dict[str, object]
) -> None:
    document = manifest([facts], "abc", "2026-11-30T00:00:00Z")
    name = document["artifacts"][0]["file"]
    server.files["stable/latest/manifest.json"] = json.dumps(document).encode()
    server.files[f"stable/latest/{name}"] = (BUILT / name).read_bytes()
    with new_machine() as new:
        machine = new.with_environ(
            LEMON_INSTALL_BASE_URL=server.url,
            LEMON_GATEWAY_HEALTH_PORT="0",
            LEMON_ROUTER_HEALTH_PORT="0",
        )
        done = await machine.install("--verify")
        assert done.code == 0, done
        assert f"install: starting Lemon {__version__} once" in done.err
        lemon = machine.lemon / "bin" / "lemon"
        assert (await machine.run(lemon, "--version")).out == f"lemon {__version__}\n"
        ready = await machine.run(lemon, "setup", "-n")
        assert (ready.code, "Setup is complete." in ready.out) == (0, True), ready
        async with FakeChatServer([Turn(text="Installed.")]) as model:
            user = machine.with_environ(OPENAI_API_KEY="k", OPENAI_BASE_URL=model.base_url)
            told = await user.run(lemon, "run", "Say hello")
        assert (told.code, told.out.strip()) == (0, "Installed."), told
        checked = await machine.run(lemon, "update", "--check", "--json")
        assert json.loads(checked.out)["update_available"] is False, checked
        script_of(machine, "systemctl", "#!/bin/sh\n")
        assert (await machine.run(lemon, "daemon", "install")).code == 0
        unit = (machine.home / ".config" / "systemd" / "user" / "lemon.service").read_text()
        # The name that stays when `current` moves.
        assert re.search(rf'^ExecStart="{re.escape(str(lemon))}" "start"', unit, re.MULTILINE), unit


@pytest.mark.behaviour("lemon_cli.17")
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"sha256": "0" * 64}, "does not have the checksum"),
        ({"sha256": None}, "sha256"),
        ({"manifest": {"schema": 1}}, "has schema 1"),
        ({"archive": archive_of([*release(NEW), member("../../x", b"")])}, "outside the release"),
        ({"archive": archive_of([member("lib/x", b"")])}, "has no bin/lemon"),
        ({"cut": True}, "cannot be fetched"),
    ],
)
async def test_an_update_that_fails_changes_nothing(
    installed: Machine, server: ReleaseServer, broken: dict[str, object], said: str
) -> None:
    changes = dict(broken)
    if changes.pop("cut", False):
        server.cut.add(f"stable/latest/lemon-{NEW}.tar.gz")
    offer(server, **changes)  # type: ignore[arg-type]  # each row is right for one of them
    before = installed.seen()
    told = await installed.run(_lemon(installed), "update")
    assert (told.code, told.out) == (1, ""), told
    assert said in told.err.splitlines()[-1]
    assert installed.seen() == before


@pytest.mark.behaviour("lemon_cli.2", "lemon_cli.17")
async def test_an_update_is_put_to_use_and_taken_back(
    installed: Machine, server: ReleaseServer
) -> None:
    offer(server)
    old_program = _lemon(installed)
    current = installed.lemon / "versions" / "current" / "bin" / "lemon"
    told = await installed.run(old_program, "update", "--check")
    assert (told.code, installed.seen()["current"]) == (0, __version__)
    assert told.out.startswith(f"Lemon {NEW} can be installed: lemon update")
    done = await installed.run(old_program, "update", "--json")
    document = json.loads(done.out)
    assert (done.code, document["update_applied"], document["restart_required"]) == (0, True, True)
    # Of the older ones, the release that runs and one more are kept.
    assert installed.seen() == {
        "current": NEW,
        "versions": [OLD, __version__, NEW, "current", "source"],
        "tmp": [],
    }
    assert (await installed.run(current)).out == f"{NEW}\n"
    back = await installed.run(old_program, "update", "--rollback")
    assert (back.code, installed.seen()["current"]) == (0, __version__), back
    assert (await installed.run(current, "--version")).out == f"lemon {__version__}\n"


@pytest.mark.behaviour("lemon_cli.17")
async def test_a_package_outside_the_layout_is_not_updated(
    unpacked: Machine, server: ReleaseServer
) -> None:
    # The same files in another home: not where an installer would have put them.
    with new_machine() as other:
        told = await other.with_environ(LEMON_UPDATE_MANIFEST_URL=server.manifest_url).run(
            unpacked.lemon / "versions" / __version__ / "bin" / "lemon", "update"
        )
    assert (told.code, told.out, server.requests) == (1, "", [])
    assert "update it the way it was installed" in told.err


def _lemon(machine: Machine) -> Path:
    # By the version's own name: it stays what it is while `current` moves.
    return machine.lemon / "versions" / __version__ / "bin" / "lemon"
