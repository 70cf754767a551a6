"""What each built-in check finds (specification lemon_core 14, behaviour 39)."""

from __future__ import annotations

import os
import socket
import sqlite3
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest

from lemon_core.clock import SystemClock
from lemon_core.doctor import DailyQuota, Finding, Report, host_checks
from lemon_core.doctor.checks import BUILT_IN, run_doctor
from lemon_core.doctor.report import Status
from lemon_core.state_lock import hold_state_lock
from lemon_core.store import ModelUsage, Usage, UsageRow, UsageStore
from lemon_core.tests.doctor.scene import Scene
from lemon_core.usage_meter import utc_date

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("lemon_core.39")]

KEY = b64encode(os.urandom(32)).decode()
HOME = "home/.lemon"


@dataclass(frozen=True, slots=True)
class Case:
    check: str
    status: Status
    says: str
    files: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)


CONFIG = f"{HOME}/config.toml"
PROJECT = "project/.lemon/config.toml"
DATABASE = f"{HOME}/store/store.sqlite3"
MANIFEST = '{"name": "good", "version": "1", "schema_version": 1}'

CASES = [
    Case("config.global_exists", "pass", "is there", {CONFIG: ""}),
    Case("config.global_exists", "warn", "defaults apply"),
    Case("config.global_valid", "pass", "has a meaning", {CONFIG: "[tui]\ndebug = true\n"}),
    Case("config.global_valid", "warn", "config.toml:1: tvi: unknown", {CONFIG: "[tvi]\na = 1\n"}),
    Case("config.global_valid", "fail", "config.toml:1: malformed TOML", {CONFIG: "[tui\n"}),
    Case(
        "config.global_valid",
        "fail",
        "config.toml:2: tui.debug: must be true or false",
        {CONFIG: "[tui]\ndebug = 3\n"},
    ),
    Case(
        "config.global_valid",
        "fail",
        "config.toml:2: defaults.engine: removed",
        {CONFIG: "[defaults]\nengine = 'x'\n"},
    ),
    Case("config.global_valid", "skip", "is not there"),
    Case("config.project_valid", "pass", "has a meaning", {PROJECT: "[tui]\ntheme = 'dark'\n"}),
    Case("config.project_valid", "warn", "may not set this", {PROJECT: "[store]\npath = '/x'\n"}),
    Case("config.project_valid", "fail", "config.toml:1: malformed TOML", {PROJECT: "[tui\n"}),
    Case("config.project_valid", "skip", "has no .lemon/config.toml"),
    Case("secrets.master_key", "pass", "comes from env", environ={"LEMON_SECRETS_MASTER_KEY": KEY}),
    Case("secrets.master_key", "pass", "comes from file", {f"{HOME}/secrets_master_key": KEY}),
    Case("secrets.master_key", "fail", "there is no master key"),
    Case(
        "secrets.master_key",
        "fail",
        "not a phrase",
        environ={"LEMON_SECRETS_MASTER_KEY": "a long phrase and nothing random at all"},
    ),
    Case("runtime.lemon_root", "warn", "no folder", environ={"LEMON_PATH": "~/nowhere"}),
    Case("runtime.lemon_root", "warn", "holds no Lemon", environ={"LEMON_PATH": "~"}),
    Case(
        "runtime.lemon_root",
        "pass",
        "the source tree is",
        {"home/src/apps/lemon_core/__init__.py": ""},
        {"LEMON_PATH": "~/src"},
    ),
    Case("providers.default", "warn", "no provider is configured"),
    Case("providers.default", "pass", "xai is the default", {CONFIG: "[defaults]\nprovider='xai'"}),
    Case("providers.default", "pass", "groq is the", {CONFIG: "[defaults]\nmodel='groq:llama'"}),
    Case("providers.default", "pass", "openai", environ={"OPENAI_API_KEY": "k"}),
    Case("providers.credentials", "skip", "no provider"),
    Case("providers.credentials", "pass", "openai", environ={"OPENAI_API_KEY": "k"}),
    Case("providers.credentials", "warn", "for xai", {CONFIG: "[defaults]\nprovider='xai'"}),
    Case(
        "providers.credentials",
        "pass",
        "mine",
        {CONFIG: "[providers.mine]\nbase_url = 'http://127.0.0.1:1/v1'"},
    ),
    Case(
        "providers.credentials",
        "pass",
        "xai",
        {CONFIG: "[providers.xai]\napi_key_secret = 'MY_KEY'"},
        {"MY_KEY": "k"},
    ),
    Case("providers.routing", "skip", "no provider steps in"),
    Case(
        "providers.routing",
        "warn",
        "for groq of",
        {CONFIG: "[runtime.provider_routing]\nfallback_providers = ['groq']"},
    ),
    Case(
        "providers.routing",
        "pass",
        "groq can",
        {CONFIG: "[runtime.provider_routing]\nfallback_providers = ['groq']"},
        {"GROQ_API_KEY": "k"},
    ),
    Case("skills.directory", "skip", "not there"),
    Case("skills.directory", "pass", "is there", {f"{HOME}/agent/skill/a/SKILL.md": ""}),
    Case("skills.directory", "fail", "no folder", {f"{HOME}/agent/skill": ""}),
    Case("node_tools.git", "fail", "git is not there"),
    Case("node_tools.git", "pass", "git version 9", programs={"git": "git version 9"}),
    Case("node_tools.node", "warn", "node is not there"),
    Case("node_tools.node", "pass", "node v22", programs={"node": "v22"}),
    Case("node_tools.npm", "warn", "npm is not there"),
    Case("node_tools.npm", "pass", "npm 11", programs={"npm": "11"}),
    Case("store.ping", "pass", "is made when Lemon first starts"),
    Case("store.ping", "skip", "in memory", environ={"LEMON_STORE_BACKEND": "memory"}),
    Case(
        "store.ping",
        "fail",
        "cannot be made",
        {f"{HOME}/file": ""},
        {"LEMON_STORE_PATH": "~/.lemon/file"},
    ),
    Case(
        "store.ping", "fail", "not a readable database", {f"{HOME}/store/store.sqlite3": "x" * 99}
    ),
    Case("usage.status", "skip", "no run has been counted"),
    Case("terminal.backends", "warn", "sandbox is unavailable"),
    Case("terminal.backends", "pass", "local, local_pty; sandbox", programs={"bwrap": ""}),
    Case(
        "terminal.backends",
        "warn",
        "no terminal backend",
        environ={"LEMON_TERMINAL_BACKENDS_DENY": "*"},
    ),
    Case(
        "terminal.backends",
        "warn",
        "unknown backends: docker",
        environ={"LEMON_TERMINAL_BACKENDS_ALLOW": "local,docker"},
    ),
    Case("extensions.manifests", "skip", "there is no extension"),
    Case(
        "extensions.manifests",
        "pass",
        "can be read: 1",
        {f"{HOME}/agent/extensions/good/extension.json": MANIFEST},
    ),
    Case(
        "extensions.manifests",
        "warn",
        "version: is required",
        {"project/.lemon/extensions/bad/extension.json": '{"name": "bad", "schema_version": 1}'},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.check}-{c.status}")
async def test_a_built_in_check_finds(case: Case, tmp_path: Path) -> None:
    scene = Scene(tmp_path, dict(case.environ)).write(case.files)
    for name, output in case.programs.items():
        scene.program(name, output)
    with anyio.fail_after(5):
        found = await scene.look(case.check)
    assert (found.status, found.status in ("pass", "skip")) == (
        case.status,
        found.remediation is None,
    )
    assert case.says in found.message


async def test_an_installed_lemon_needs_no_source_tree(tmp_path: Path) -> None:
    context = Scene(tmp_path).context()
    installed = replace(context, env=replace(context.env, lemon_root=None))
    assert (await host_checks.lemon_root(installed)).status == "skip"


async def test_a_program_that_fails_counts_as_missing(tmp_path: Path) -> None:
    found = (
        await Scene(tmp_path).program("git", "no developer tools", code=1).look("node_tools.git")
    )
    assert found.status == "fail"


async def test_a_manifest_is_read_and_no_code_beside_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write(
        {
            f"{HOME}/agent/extensions/good/extension.json": MANIFEST,
            f"{HOME}/agent/extensions/good/__init__.py": "raise SystemExit('imported')",
            CONFIG: "[runtime]\nextension_paths = ['~/more']",
            "home/more/lemon_extension.json": MANIFEST,
        }
    )
    assert (await scene.look("extensions.manifests")).message.endswith("can be read: 2")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody else gets and that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def test_the_control_port_of_a_lemon_that_does_not_run(
    tmp_path: Path, closed_port: int
) -> None:
    scene = Scene(tmp_path, {"LEMON_CONTROL_PLANE_PORT": str(closed_port)})
    assert await scene.look("runtime.control_port") == Finding("skip", "Lemon is not running")


async def test_a_control_port_that_somebody_else_uses(tmp_path: Path) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        scene = Scene(tmp_path, {"LEMON_CONTROL_PLANE_PORT": str(port)})
        found = await scene.look("runtime.control_port")
    assert (found.status, f"port {port} is in use" in found.message) == ("warn", True)


async def test_the_control_port_of_a_running_lemon(tmp_path: Path, closed_port: int) -> None:
    scene = Scene(tmp_path)
    async with hold_state_lock(scene.paths.runtime_lock, "server", SystemClock()):
        scene.environ["LEMON_CONTROL_PLANE_PORT"] = str(closed_port)
        without = await scene.look("runtime.control_port")
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            scene.environ["LEMON_CONTROL_PLANE_PORT"] = str(port)
            with_one = await scene.look("runtime.control_port")
    assert (without.status, with_one.status) == ("skip", "pass")
    assert "without a control plane" in without.message


async def test_a_lock_that_cannot_be_read_fails(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write({f"{HOME}/run": "a file where the folder should be"})
    assert (await scene.look("runtime.control_port")).status == "fail"


async def test_a_sound_store_answers_also_while_lemon_has_it_open(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with scene.store() as store:
        await store.put("notes", "a", 1)
        open_now = await scene.look("store.ping")
        await store.put("notes", "b", 2)
    closed = await scene.look("store.ping")
    assert (open_now.status, closed.status) == ("pass", "pass")
    async with scene.store() as store:
        assert await store.load_all("notes") == [("a", 1), ("b", 2)]


async def test_damage_inside_the_store_fails_and_stays_as_it_is(tmp_path: Path) -> None:
    """A damaged index or page is told with a remedy; looking changes nothing."""
    scene = Scene(tmp_path)
    async with scene.store() as store:
        for number in range(200):
            await store.put("notes", f"key {number}", "x" * 200)
    path = scene.context().store_path
    content = bytearray(path.read_bytes())
    content[-9_000:-5_000] = b"\xff" * 4_000
    path.write_bytes(content)
    found = await scene.look("store.ping")
    assert found.status == "fail"
    assert found.remediation is not None
    assert str(path) in found.message
    assert path.read_bytes() == bytes(content)


async def test_an_older_or_empty_database_is_left_as_it_is(tmp_path: Path) -> None:
    """Only Lemon's start brings it up to date; a look must not."""
    scene = Scene(tmp_path)
    async with scene.store():
        pass
    path = scene.context().store_path
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE lemon_store_meta SET value='1' WHERE name='format'")
        db.commit()
    for content in (path.read_bytes(), b""):
        path.write_bytes(content)
        with anyio.fail_after(20):
            report = await run_doctor(scene.context())
        (told,) = [check for check in report.checks if check.name == "store.ping"]
        assert (told.status, "when Lemon starts" in told.message) == ("pass", True)
        assert path.read_bytes() == content
        assert list(path.parent.glob("*.bak")) == []


async def test_usage_within_and_over_a_limit(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    today = utc_date(SystemClock().now_ms())
    async with scene.store() as store:
        used = UsageRow(today, (ModelUsage("openai", "m", Usage(runs=3, cost_usd=2.5)),))
        await UsageStore(store).add("usage_data", "current", used)
    assert (await scene.look("usage.status")).message == "within every limit: 3 runs today"
    scene.quotas = (DailyQuota("cost_usd", 2.0), DailyQuota("runs", 3), DailyQuota("total", 1))
    found = await scene.look("usage.status")
    assert (found.status, found.message) == ("warn", "over the limit of today: 2.5 of 2 cost_usd")


async def test_usage_of_a_store_that_cannot_be_read_is_no_second_fault(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write({f"{HOME}/store/store.sqlite3": "x" * 99})
    assert (await scene.look("usage.status")).status == "skip"


async def test_stored_secrets_count_as_credentials(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"LEMON_SECRETS_MASTER_KEY": KEY}).write(
        {CONFIG: "[providers.xai]\n[defaults]\nprovider = 'groq'\n"}
    )
    context = scene.context()
    async with scene.store() as store:
        await context.make_secrets(store).set("llm_xai_api_key", "one")
        await context.make_secrets(store).set("GROQ_API_KEY", "two")
    assert (await scene.look("providers.credentials")).status == "pass"


async def test_every_check_runs_on_an_empty_home_and_leaves_it_empty(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with anyio.fail_after(20):
        report: Report = await run_doctor(scene.context())
    assert [check.name for check in report.checks] == [check.name for check in BUILT_IN]
    assert list(scene.paths.home.iterdir()) == []
