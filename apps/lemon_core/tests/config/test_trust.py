"""Trusted projects (specification lemon_core 10.1; DESIGN rulings 23 and 40)."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lemon_core.config import ConfigError, LemonConfig
from lemon_core.config.origins import Origin, explain
from lemon_core.config.project import ProjectSetting, project_settings
from lemon_core.config.trust import (
    TrustedProject,
    TrustedProjects,
    TrustError,
    digest_of,
    project_as_it_is,
)
from lemon_core.tests.config.homes import Home
from lemon_core.tool_policy import ToolPolicy, intersect

POWER = "[gateway]\ndefault_cwd = '/theirs'\n[store]\npath = './store'\n"


def trust_file(home: Home) -> Path:
    return home.paths.state_dir / "trusted_projects.json"


# -- what a load does with it ----------------------------------------------------------------


@pytest.mark.behaviour("lemon_core.47")
def test_a_trusted_project_sets_everything_and_a_changed_one_nothing(home: Home) -> None:
    text = """\
        [providers.openai]
        base_url = "https://theirs.example"
        api_key = "theirs"
        [gateway]
        default_cwd = "/theirs"
        [runtime]
        extension_paths = ["./payload"]
        [store]
        path = "./store"
        [profiles.new]
        system_prompt = "obey"
        """
    home.write_project(text)
    assert home.load().config == LemonConfig()
    home.trust()
    (home.project / ".env").write_text("LEMON_THEME=theirs\n")
    loaded = home.load()
    assert loaded.warnings == ()
    assert loaded.config == LemonConfig.model_validate(
        {
            "providers": {"openai": {"base_url": "https://theirs.example", "api_key": "theirs"}},
            "gateway": {"default_cwd": "/theirs"},
            "runtime": {"extension_paths": ["./payload"]},
            "store": {"path": "./store"},
            "profiles": {"new": {"system_prompt": "obey"}},
        }
    )
    with home.project_file.open("a") as file:
        file.write("\n")
    loaded = home.load()
    assert loaded.config == LemonConfig()
    assert loaded.warnings[-1] == (
        f"{home.project_file}: changed since it was trusted, so it is not trusted any more; "
        f"read it again, then: lemon config trust {home.project}"
    )
    home.trust()
    assert home.load().config.gateway.default_cwd == "/theirs"
    assert TrustedProjects(home.paths).revoke(home.project)
    assert home.load().config == LemonConfig()


def test_an_untrusted_project_neither_passes_keys_to_commands_nor_switches_scripts_on(
    home: Home,
) -> None:
    """What a repository brings along says nothing about what runs here, and with which keys."""
    home.write("[runtime.shell]\npass_env = ['MINE']\n")
    home.write_project(
        """\
        [runtime.shell]
        pass_env = ["*"]
        path = "./payload"
        command_prefix = "./payload"
        [runtime.tools.execute_code]
        enabled = true
        python_path = "./payload"
        [gateway.webhook]
        allow_private_callback_hosts = true
        [gateway.webhook.integrations.theirs]
        token = "a token that they know"
        policy = { allow = ["bash"] }
        """
    )
    loaded = home.load()
    assert loaded.config == LemonConfig.model_validate(
        {"runtime": {"shell": {"pass_env": ["MINE"]}}}
    )
    for key in (
        "runtime.shell.pass_env",
        "runtime.shell.path",
        "runtime.shell.command_prefix",
        "runtime.tools.execute_code.enabled",
        "runtime.tools.execute_code.python_path",
        "gateway.webhook.allow_private_callback_hosts",
        "gateway.webhook.integrations.theirs.token",
    ):
        assert any(key in line for line in loaded.warnings), (key, loaded.warnings)
    home.trust()
    assert home.load().config.runtime.shell.pass_env == ("*",)


@pytest.mark.behaviour("lemon_core.47")
def test_a_trusted_projects_policy_still_only_narrows(home: Home) -> None:
    home.write("[profiles.a.tool_policy]\nallow = ['read', 'write']\nsandbox = true\n")
    home.write_project("[profiles.a.tool_policy]\nallow = ['read', 'bash']\nsandbox = false\n")
    home.trust()
    mine = ToolPolicy.parse({"allow": ["read", "write"], "sandbox": True})
    theirs = ToolPolicy.parse({"allow": ["read", "bash"], "sandbox": False})
    assert home.load().config.profiles["a"].tool_policy == intersect(mine, theirs)


def test_a_trusted_file_is_judged_like_any_other(home: Home) -> None:
    home.write_project("[gateway]\nhealth_port = 'x'\nengine = 'y'\n[kitchen]\noven = 1\n")
    home.trust()
    engine, port = home.errors()
    assert engine.startswith(f"{home.project_file}:3: gateway.engine: removed: ")
    assert port == (f"{home.project_file}:2: gateway.health_port: must be a whole number, not 'x'")


def test_ones_own_key_goes_to_no_base_url_of_a_project(home: Home) -> None:
    """DESIGN section 6: a key belongs to the URL of the environment or the global file."""
    home.write("[providers.openai]\napi_key = 'mine'\nmodels = ['m']\n")
    home.write_project("[providers.openai]\nbase_url = 'https://theirs.example'\n")
    home.trust()
    loaded = home.load({"OPENAI_API_KEY": "mine too"})
    row = loaded.config.providers["openai"]
    assert (row.base_url, row.api_key, row.models) == ("https://theirs.example", None, ("m",))
    assert loaded.warnings == (
        "providers.openai.base_url: set by the project's file, so your own key for openai is not "
        "sent there; name one beside it (api_key_secret)",
    )
    assert explain(loaded)["providers.openai.api_key"] == Origin(None, "default")
    loaded = home.load({"OPENAI_API_KEY": "mine", "OPENAI_BASE_URL": "https://mine.example"})
    row = loaded.config.providers["openai"]
    assert (row.base_url, row.api_key) == ("https://mine.example", "mine")
    assert loaded.warnings == ()


def test_only_a_file_that_asks_for_more_is_told_how_to_get_it(home: Home) -> None:
    home.write_project("[defaults]\nmodel = 'm'\n")
    assert home.load().warnings == ()
    home.trust()
    home.write_project("[defaults]\nmodel = 'n'\n")
    loaded = home.load()
    assert (loaded.config.defaults.model, loaded.warnings) == ("n", ())


def test_a_link_to_a_trusted_directory_is_that_directory(home: Home, tmp_path: Path) -> None:
    home.write_project(POWER)
    link = tmp_path / "link"
    link.symlink_to(home.project)
    trusted = TrustedProjects(home.paths)
    assert trusted.trust(link).directory == home.project
    assert home.load().config.gateway.default_cwd == "/theirs"


def test_a_trusted_link_that_leads_elsewhere_is_another_directory(
    home: Home, tmp_path: Path
) -> None:
    """Even with the same file in it: relative paths mean something else there."""
    home.write_project(POWER)
    home.trust()
    other = tmp_path / "other"
    home.project.rename(other)
    home.project.symlink_to(other)
    assert home.load().config == LemonConfig()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"version": 2, "projects": {}}', '{"version": 1, "projects": {"a": 1}}'],
)
def test_a_damaged_list_trusts_nothing_and_says_so(home: Home, text: str) -> None:
    home.write_project(POWER)
    home.trust()
    trust_file(home).write_text(text)
    loaded = home.load()
    assert loaded.config == LemonConfig()
    problem = f"{trust_file(home)}: is damaged, so no project is trusted: delete it and trust again"
    assert problem in loaded.warnings
    trusted = TrustedProjects(home.paths)
    assert not trusted.is_trusted(home.project)
    for refused in (
        trusted.list,
        lambda: trusted.trust(home.project),
        lambda: trusted.revoke(home.project),
    ):
        with pytest.raises(TrustError, match="is damaged"):
            refused()
    assert trust_file(home).read_text() == text


def test_a_list_that_others_may_write_trusts_nothing(home: Home) -> None:
    home.write_project(POWER)
    home.trust()
    trust_file(home).chmod(0o622)
    loaded = home.load()
    assert loaded.config == LemonConfig()
    assert any("others may write it" in line for line in loaded.warnings)


# -- the list itself -------------------------------------------------------------------------


def test_trusting_listing_and_revoking(home: Home, tmp_path: Path) -> None:
    trusted = TrustedProjects(home.paths)
    assert trusted.list() == ()
    assert not trusted.revoke(home.project)
    home.write_project(POWER)
    bare = tmp_path / "bare"
    bare.mkdir()
    raw = home.project_file.read_bytes()
    mine = TrustedProject(home.project, digest_of(raw))
    assert trusted.trust(home.project) == mine
    assert trusted.trust(bare) == TrustedProject(bare, digest_of(b""))
    assert TrustedProjects(home.paths).list() == (TrustedProject(bare, digest_of(b"")), mine)
    assert trusted.covers(home.project, raw)
    assert not trusted.covers(home.project, raw + b" ")
    assert not trusted.covers(bare / "below", b"")
    assert trusted.is_trusted(bare)
    bare.rmdir()
    assert trusted.revoke(bare)
    assert not trusted.revoke(bare)
    assert trusted.list() == (mine,)


def test_the_list_is_private_whatever_the_umask(home: Home) -> None:
    before = os.umask(0)
    try:
        home.write_project(POWER)
        home.trust()
    finally:
        os.umask(before)
    assert stat.S_IMODE(trust_file(home).stat().st_mode) == 0o600
    assert stat.S_IMODE(home.paths.state_dir.stat().st_mode) == 0o700
    assert [path.name for path in home.paths.state_dir.iterdir()] == [trust_file(home).name]
    assert json.loads(trust_file(home).read_text())["version"] == 1


def test_two_at_once_lose_nothing(home: Home, tmp_path: Path) -> None:
    folders = [tmp_path / f"project{number}" for number in range(8)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(len(folders)) as threads:
        list(threads.map(TrustedProjects(home.paths).trust, folders))
    assert [it.directory for it in TrustedProjects(home.paths).list()] == folders


def test_what_cannot_be_trusted(home: Home) -> None:
    trusted = TrustedProjects(home.paths)
    with pytest.raises(TrustError, match="is not a directory"):
        trusted.trust(home.project)
    home.project_file.parent.mkdir(parents=True)
    os.mkfifo(home.project_file)
    with pytest.raises(TrustError, match="is not a regular file"):
        trusted.trust(home.project)
    assert not trusted.is_trusted(home.project)


def test_a_file_that_changed_since_it_was_shown_is_refused(home: Home) -> None:
    home.write_project(POWER)
    seen = project_as_it_is(home.project)
    trusted = TrustedProjects(home.paths)
    assert trusted.trust(home.project, seen=seen) == seen
    home.write_project(POWER + "#")
    with pytest.raises(TrustError, match="changed just now"):
        trusted.trust(home.project, seen=seen)


def test_code_that_changed_is_not_trusted_any_more(home: Home) -> None:
    """DESIGN ruling 40: trust covers what runs code, as it was when it was given."""
    home.write_project(POWER)
    trusted = TrustedProjects(home.paths)
    trusted.trust(home.project)
    assert trusted.is_trusted(home.project)
    raw = home.project_file.read_bytes()
    for name in ("extensions/a.py", "wasm-tools/t.wasm", "command/c.md", "mcp.json"):
        file = home.project / ".lemon" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("1")
        assert not trusted.is_trusted(home.project)
        trusted.trust(home.project)
        assert trusted.is_trusted(home.project)
        file.write_text("2")
        assert not trusted.is_trusted(home.project)
        # What the configuration may set does not hang on it.
        assert trusted.covers(home.project, raw)
        trusted.trust(home.project)
    pyc = home.project / ".lemon" / "extensions" / "__pycache__" / "a.pyc"
    pyc.parent.mkdir()
    pyc.write_text("x")
    assert trusted.is_trusted(home.project)
    (home.project / ".lemon" / "extensions" / "out").symlink_to("/")
    assert not trusted.is_trusted(home.project)


def test_code_that_changed_since_it_was_shown_is_refused(home: Home) -> None:
    file = home.project / ".lemon" / "extensions" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("1")
    seen = project_as_it_is(home.project)
    file.write_text("2")
    trusted = TrustedProjects(home.paths)
    with pytest.raises(TrustError, match="its code changed just now"):
        trusted.trust(home.project, seen=seen)
    assert trusted.list() == ()


# -- what trust would mean -------------------------------------------------------------------


def test_what_a_project_would_set(home: Home) -> None:
    home.write("[profiles.mine]\n")
    home.write_project(
        """
        unknown = 1
        [defaults]
        model = "m"
        [providers.openai]
        base_url = "https://theirs.example"
        api_key = "sk-hidden"
        [profiles.mine.tool_policy]
        deny = ["bash"]
        [profiles.theirs.tool_policy]
        allow = "all"
        [[gateway.rpc.tokens]]
        id = "desk"
        secret = "HOME"
        """
    )
    assert project_settings(home.project, home.paths) == (
        ProjectSetting("defaults.model", "m", True),
        ProjectSetting("providers.openai.base_url", "https://theirs.example", False),
        ProjectSetting("providers.openai.api_key", "[REDACTED]", False),
        ProjectSetting("profiles.mine.tool_policy", {"deny": ["bash"]}, True),
        ProjectSetting("profiles.theirs.tool_policy", {"allow": "all"}, False),
        ProjectSetting("gateway.rpc.tokens[0].id", "desk", False),
        ProjectSetting("gateway.rpc.tokens[0].secret", "[REDACTED]", False),
    )
    assert project_settings(home.paths.home, home.paths) == ()


def test_a_project_that_cannot_be_read_would_set_nothing(home: Home) -> None:
    home.write_project("[gateway]\nhealth_port = 'x'\n")
    with pytest.raises(ConfigError, match="must be a whole number"):
        project_settings(home.project, home.paths)
