"""The support bundle (specification lemon_core 14, behaviour 39)."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

import pytest

from lemon_core.clock import SystemClock
from lemon_core.doctor import Check, DoctorArea, DoctorContext, Report
from lemon_core.doctor.areas import AREAS
from lemon_core.doctor.bundle import BundleNotWritten, default_bundle_path, write_bundle
from lemon_core.doctor.checks import run_doctor
from lemon_core.introspection import Introspection
from lemon_core.profiles import Profile
from lemon_core.tests.doctor.scene import Scene

pytestmark = pytest.mark.anyio

REPORT = Report((Check("a", "pass", "well"), Check("b", "warn", "so so", "mend it")))
HOME = "home/.lemon"

GLOBAL = """\
[defaults]
model = "openai:gpt-planted-01key"
provider = 7

[providers.openai]
api_key = "planted-02"
base_url = "https://me:planted-03@models.test/v1?key=planted-04"
api_key_secret = "planted-05"
deployment_name_map = { a = "planted-06" }
colour = "planted-07"

[providers.broken]
base_url = "planted-08 is no URL"

[profiles.default]
system_prompt = "the word is planted-09"

[runtime.shell]
command_prefix = "export WORD=planted-10"

[gateway.sms]
auth = "planted-11"
number = 4915112345678

[[gateway.rpc.tokens]]
id = "peer"
secret = "PLANTED_12_REFERENCE"

[mystery]
word = "planted-13"

[runtime]
extension_paths = ["/tmp/sk-planted-14-abcdef"]

[logging]
file = "~/.lemon/lemon.log"
"""

DOTENV = "MISTRAL_API_KEY=planted-20\nPLAIN_WORD=planted-21\nplanted-22 is no assignment\n"

ENVIRON = {
    "OPENAI_API_KEY": "planted-01key",
    "LEMON_SECRETS_MASTER_KEY": b64encode(b"planted-30" * 4).decode(),
    "MY_DATABASE": "postgresql://me:planted-31@db.test/lemon",
    "PLAIN": "planted-32",
    "LEMON_AGENT_DIR": "~/agents/sk-planted-33-abcdef",
    "LEMON_PATH": "https://me:planted-34@x.test/?a=planted-35",
    "HTTPS_PROXY": "http://me:planted-36@proxy.test:1",
}


async def leaky(context: DoctorContext) -> Mapping[str, object]:
    return {
        "bot_token": "planted-40",
        "note": "password=planted-41, and planted-01key",
        "url": "https://x.test/?t=planted-42",
        "list": [{"authorization": "Bearer planted-43"}, "Bearer planted-44"],
        "planted-02": 1,
    }


async def crashing(context: DoctorContext) -> Mapping[str, object]:
    raise RuntimeError("no answer from https://me:planted-45@x.test; token: planted-46")


PLANTED_AREAS = (
    DoctorArea("leaky", ("nothing",), leaky),
    DoctorArea("../crashing", ("everything",), crashing),
)


async def planted(tmp_path: Path) -> Scene:
    """A home in which every place that may hold a secret holds one."""
    scene = Scene(tmp_path, dict(ENVIRON), profile=Profile("x", components=("a.app:b",)))
    extension = {"name": "x", "version": 1, "schema_version": 1, "description": "planted-50"}
    scene.write(
        {
            f"{HOME}/config.toml": GLOBAL,
            f"{HOME}/.env": DOTENV,
            f"{HOME}/lemon.log": "planted-51\n",
            f"{HOME}/checkpoints/chk_0123456789abcdef.json": '{"text": "planted-52"}',
            f"{HOME}/secrets_master_key": "planted-53",
            "project/.lemon/config.toml": 'word = "planted-54"\n[broken\npassword = "planted-55"\n',
            "project/.lemon/extensions/planted/extension.json": json.dumps(extension),
        }
    )
    context = scene.context()
    async with scene.store() as store:
        secrets = context.make_secrets(store)
        await secrets.set("planted-60-name", "planted-61")
        records = Introspection(store, SystemClock())
        records.record(
            "tool_call",
            {"arguments": {"word": "planted-62"}, "text": "planted-63", "token": "planted-64"},
            run_id="run_planted-65",
            session_key="agent:planted-66:main",
            keep_arguments=True,
        )
        await records.close()
        await store.put("chat", "planted-67", {"text": "planted-68"})
    return scene


def unpacked(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        return {
            name.removeprefix("lemon-doctor-bundle/"): archive.read(name).decode() for name in names
        }


def document(files: Mapping[str, str], name: str) -> dict[str, object]:
    found = json.loads(files[name])
    assert isinstance(found, dict)
    return found


@pytest.mark.behaviour("lemon_core.39")
async def test_no_planted_secret_is_in_the_bundle(tmp_path: Path) -> None:
    scene = await planted(tmp_path)
    context = scene.context()
    report = await run_doctor(context, PLANTED_AREAS)
    path = await write_bundle(context, report, contributed=PLANTED_AREAS)
    files = unpacked(path)
    everything = "".join([*files, *files.values()])
    assert [line for line in everything.splitlines() if "planted-" in line.lower()] == []
    assert "PLANTED_12_REFERENCE" not in everything
    assert ENVIRON["LEMON_SECRETS_MASTER_KEY"] not in everything
    assert str(scene.paths.home) not in everything


@pytest.mark.behaviour("lemon_core.39")
async def test_the_bundle_still_tells_what_is_wrong(tmp_path: Path) -> None:
    """Redaction that leaves nothing would be safe as well."""
    scene = await planted(tmp_path)
    context = scene.context()
    report = await run_doctor(context)
    files = unpacked(await write_bundle(context, report, contributed=PLANTED_AREAS))
    values = document(files, "config/global.json")["values"]
    assert isinstance(values, dict)
    assert values["providers.openai.api_key"] == "[REDACTED]"
    assert values["providers.openai.base_url"] == ("https://[REDACTED]@models.test/v1?[REDACTED]")
    assert values["gateway.rpc.tokens[0].id"] == "peer"
    assert values["profiles.default.system_prompt"] == "[text, 22 characters]"
    assert values["defaults.provider"] == "[int]"
    assert values["logging.file"] == "~/.lemon/lemon.log"
    checks = document(files, "doctor.json")["checks"]
    assert isinstance(checks, list)
    told = {check["name"]: check["message"] for check in checks}
    assert "~/.lemon/config.toml:3: defaults.provider: must be text" in told["config.global_valid"]
    assert "config.toml:2: malformed TOML" in told["config.project_valid"]
    introspection = document(files, "diagnostics/introspection.json")["data"]
    assert isinstance(introspection, dict)
    assert introspection["event_types"] == {"tool_call": 1}
    secrets = document(files, "diagnostics/secrets.json")["data"]
    assert isinstance(secrets, dict)
    assert (secrets["count"], secrets["source"]) == (1, "env")
    crashed = document(files, "diagnostics/___crashing.json")
    assert crashed["error"] == (
        "RuntimeError: no answer from https://[REDACTED]@x.test; token: [REDACTED]"
    )


@pytest.mark.behaviour("lemon_core.39")
async def test_what_the_bundle_holds(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    files = unpacked(await write_bundle(scene.context(), REPORT))
    areas = sorted(f"diagnostics/{area.name}.json" for area in AREAS)
    assert sorted(files) == sorted(
        [
            "README.txt",
            "manifest.json",
            "doctor.json",
            "readiness.json",
            "environment.json",
            "config/global.json",
            "config/project.json",
            *areas,
        ]
    )
    assert document(files, "manifest.json")["files"] == sorted(files)
    assert document(files, "doctor.json") == REPORT.as_dict()
    assert document(files, "readiness.json")["status"] == "warning"
    for name in areas:
        area = document(files, name)
        assert area["leaves_out"], name
        assert "error" not in area, name


async def test_variables_are_shown_from_a_fixed_list(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"LANG": "C", "LEMON_LOG_LEVEL": "debug", "MY_OWN": "x"})
    files = unpacked(await write_bundle(scene.context(), REPORT))
    variables = document(files, "environment.json")["variables"]
    assert isinstance(variables, dict)
    assert variables == {"LANG": "C", "LEMON_LOG_LEVEL": "debug", "PATH": str(tmp_path / "bin")}


@pytest.mark.behaviour("lemon_core.39")
async def test_the_bundle_is_its_owners_alone(tmp_path: Path) -> None:
    context = Scene(tmp_path).context()
    before = os.umask(0o777)
    try:
        path = await write_bundle(context, REPORT)
    finally:
        os.umask(before)
    assert path.parent == context.paths.state_dir / "support-bundles"
    assert path.name.startswith("lemon-doctor-bundle-2")
    assert path.suffix == ".zip"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_folder_gets_the_bundle_under_its_own_name(tmp_path: Path) -> None:
    context = Scene(tmp_path).context()
    path = await write_bundle(context, REPORT, tmp_path)
    assert path.parent == tmp_path
    assert path.name.startswith("lemon-doctor-bundle-")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "mine.zip"
    target.write_text("mine")
    with pytest.raises(BundleNotWritten, match="it is there already"):
        await write_bundle(Scene(tmp_path).context(), REPORT, target)
    assert target.read_text() == "mine"


async def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleNotWritten, match="No such file or directory"):
        await write_bundle(Scene(tmp_path).context(), REPORT, tmp_path / "no" / "mine.zip")


async def test_a_damaged_store_keeps_no_bundle_from_being_made(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write({f"{HOME}/store/store.sqlite3": "x" * 99})
    files = unpacked(await write_bundle(scene.context(), REPORT))
    assert "StoreCorrupt" in str(document(files, "diagnostics/usage.json")["error"])
    assert "data" in document(files, "diagnostics/store.json")


async def test_the_default_path_names_the_time_in_utc(tmp_path: Path) -> None:
    path = default_bundle_path(Scene(tmp_path).context())
    stamp = path.stem.removeprefix("lemon-doctor-bundle-")
    assert (len(stamp), stamp[8], stamp[-1]) == (16, "T", "Z")
