"""Retired sections, read and rewritten (specification lemon_core 10.1, behaviours 29 and 33)."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemon_core.config import LemonConfig, load_validated
from lemon_core.config.migrate import migrate_at_start, migrate_config
from lemon_core.config.retired import migrated
from lemon_core.config.toml_text import literal_of
from lemon_core.config.write import ConfigWriteError, Edit, edit_file
from lemon_core.paths import PathSettings
from lemon_core.tests.config.homes import Home

OLD = """\
# Mine.
[agent]  # how it answers [1]
# the best one
default_model = "openai:x"   # told
theme = 'dark'
retry.max_retries = 2

# before it is full
[agent.compaction]
trigger_ratio = 0.5

[agent.tools.web.search]
api_key_secret = "BRAVE"

[agents.a]
name = "A"
[agents.a.tool_policy]
deny = [
  "bash",  # never
]

[tools.web.fetch]
max_chars = 100

# the old command line
[runtime.cli]
colour = true

[providers.openai]
api_key_secret = "OPENAI_KEY"   # a reference
base_url = "https://${HOST}/v1"
"""

NEW = """\
# Mine.
[defaults]  # how it answers [1]
# the best one
model = "openai:x"   # told

[runtime]
theme = 'dark'
retry.max_retries = 2

# before it is full
[runtime.compaction]
trigger_ratio = 0.5

[runtime.tools.web.search]
api_key_secret = "BRAVE"

[profiles.a]
name = "A"
[profiles.a.tool_policy]
deny = [
  "bash",  # never
]

[runtime.tools.web.fetch]
max_chars = 100

# the old command line

[providers.openai]
api_key_secret = "OPENAI_KEY"   # a reference
base_url = "https://${HOST}/v1"
"""


def backups(home: Home) -> dict[str, str]:
    """The copies beside the global file, by name."""
    found = home.global_file.parent.glob("config.toml.pre-update-bak*")
    return {path.name.removeprefix("config.toml"): path.read_text() for path in found}


@pytest.mark.behaviour("lemon_core.33")
def test_a_migration_keeps_comments_and_makes_a_private_backup(home: Home) -> None:
    home.write(OLD)
    home.global_file.chmod(0o644)
    report = migrate_config(home.global_file)
    assert home.global_file.read_text() == NEW
    assert report.backup == home.global_file.with_name("config.toml.pre-update-bak")
    assert backups(home) == {".pre-update-bak": OLD}
    assert stat.S_IMODE(report.backup.stat().st_mode) == 0o600
    assert report.describe() == (
        f"{home.global_file}: migrated: [agent] is now [defaults] and [runtime]; "
        "[agent.tools] is now [runtime.tools]; [agents.a] is now [profiles.a]; "
        "[tools] is now [runtime.tools]; runtime.cli was dropped; "
        f"the old file is {report.backup}"
    )


@pytest.mark.behaviour("lemon_core.33")
def test_a_second_migration_changes_nothing(home: Home) -> None:
    home.write(OLD)
    migrate_config(home.global_file)
    report = migrate_config(home.global_file)
    assert report.backup is None
    assert report.describe() == f"{home.global_file}: nothing to migrate"
    assert home.global_file.read_text() == NEW
    assert backups(home) == {".pre-update-bak": OLD}


@pytest.mark.behaviour("lemon_core.33")
def test_no_backup_is_overwritten_by_another_content(home: Home) -> None:
    for text in ("[tools.a]\nx = 1\n", "[tools.b]\nx = 1\n", "[tools.a]\nx = 1\n"):
        home.write(text)
        migrate_config(home.global_file)
    assert backups(home) == {
        ".pre-update-bak": "[tools.a]\nx = 1\n",
        ".pre-update-bak.1": "[tools.b]\nx = 1\n",
    }


def test_the_new_name_wins_over_the_old_one_and_it_is_said(home: Home) -> None:
    home.write(
        """\
        [defaults]
        model = "new"  # mine
        [agent]
        # an old choice
        model = "old"
        provider = "openai"  # and who
        theme = "dark"
        [runtime]
        theme = "lemon"
        """
    )
    report = migrate_config(home.global_file)
    assert home.global_file.read_text() == (
        '[defaults]\nmodel = "new"  # mine\nprovider = "openai"  # and who\n'
        '[runtime]\ntheme = "lemon"\n'
    )
    assert report.shadowed == (
        (("agent", "model"), ("defaults", "model")),
        (("agent", "theme"), ("runtime", "theme")),
    )
    assert "agent.model was dropped, as defaults.model is set too" in report.describe()


def test_keys_in_braces_and_behind_dots_are_moved_too(home: Home) -> None:
    home.write(
        """\
        agent = { model = "x", theme = "dark", cli = { a = 1 } }
        tools.web.search.max_results = 3  # few
        [runtime]
        cli.x = 1
        # above the shell
        [runtime.shell]
        timeout_ms = 1000
        """
    )
    migrate_config(home.global_file)
    assert tomllib.loads(home.global_file.read_text()) == {
        "defaults": {"model": "x"},
        "runtime": {
            "theme": "dark",
            "shell": {"timeout_ms": 1000},
            "tools": {"web": {"search": {"max_results": 3}}},
        },
    }
    assert "# above the shell\n[runtime.shell]" in home.global_file.read_text()
    assert "# few" in home.global_file.read_text()


@pytest.mark.behaviour("lemon_core.29")
def test_engine_keys_are_reported_and_stay_for_the_load_to_refuse(home: Home) -> None:
    home.write("[agent]\nengine = 'x'\nmodel = 'm'\n[agents.a]\nengine = 'y'\nname = 'A'\n")
    report = migrate_config(home.global_file)
    assert report.engine_keys == (("agent", "engine"), ("agents", "a", "engine"))
    assert tomllib.loads(home.global_file.read_text()) == {
        "agent": {"engine": "x"},
        "defaults": {"model": "m"},
        "agents": {"a": {"engine": "y"}},
        "profiles": {"a": {"name": "A"}},
    }
    assert [line.split(": ")[1] for line in home.errors()] == ["agent.engine", "agents.a.engine"]
    assert migrate_config(home.global_file).backup is None


def test_what_cannot_be_taken_apart_is_left_alone_and_still_read(home: Home) -> None:
    text = "[agent]\nextension_paths = [\n" + "'a',\n" * 300 + "]\nmodel = 'm'\n"
    home.write(text)
    with pytest.raises(ConfigWriteError, match="renamed by hand"):
        migrate_config(home.global_file)
    assert home.global_file.read_text() == text
    assert backups(home) == {}
    assert home.load().config.defaults.model == "m"


def test_a_malformed_file_is_not_migrated(home: Home) -> None:
    home.write("[agent\n")
    with pytest.raises(ConfigWriteError, match="malformed TOML"):
        migrate_config(home.global_file)
    assert migrate_at_start(home.global_file) == ()
    assert migrate_at_start(home.global_file.with_name("none.toml")) == ()


@pytest.mark.behaviour("lemon_core.29")
def test_a_file_that_cannot_be_written_is_read_under_the_new_names(home: Home) -> None:
    home.write(OLD)
    home.global_file.chmod(0o444)
    (line,) = migrate_at_start(home.global_file)
    assert line == (
        f"{home.global_file}: not changed: is read-only; "
        "its retired sections are read under their new names"
    )
    assert home.global_file.read_text() == OLD
    loaded = home.load()
    assert loaded.config.defaults.model == "openai:x"
    assert loaded.config.runtime.theme == "dark"
    assert loaded.config.profiles["a"].name == "A"
    assert [warning.split(": ")[1] for warning in loaded.warnings] == [
        "agent",
        "agents",
        "tools",
        "runtime.cli",
    ]
    assert "retired section, read under its new name; rename [agent] to" in loaded.warnings[0]


@pytest.mark.behaviour("lemon_core.29")
def test_the_migrated_file_says_what_the_old_one_is_read_as(home: Home) -> None:
    home.write(OLD)
    before = home.load()
    migrate_config(home.global_file)
    assert home.load().config == before.config
    assert home.load().warnings == ()


@pytest.mark.behaviour("lemon_core.48")
def test_a_meaningless_value_in_a_retired_section_is_an_error_at_its_line(home: Home) -> None:
    home.write("[tui]\n[agent]\nmodel = 'm'\nthinking_level = 'huge'\n")
    (error,) = home.errors()
    assert error.startswith(f"{home.global_file}:4: defaults.thinking_level: must be ")


@pytest.mark.behaviour("lemon_core.47")
def test_a_projects_retired_sections_get_no_more_power(home: Home) -> None:
    home.write_project("[agent]\nmodel = 'theirs'\nextension_paths = ['x']\n[tools.x]\ny = 1\n")
    loaded = home.load()
    expected = LemonConfig.model_validate({"defaults": {"model": "theirs"}})
    assert loaded.config == expected
    told = {warning.split(": ")[1] for warning in loaded.warnings}
    assert {"runtime.extension_paths", "agent", "tools"} <= told


@pytest.mark.behaviour("lemon_core.105")
def test_a_reference_to_a_secret_survives_every_writer(home: Home) -> None:
    home.write(OLD)
    lines = [line for line in OLD.splitlines() if "_secret" in line or "${" in line]
    edit_file(home.global_file, [Edit(("tui", "debug"), "true")])
    migrate_config(home.global_file)
    edit_file(home.global_file, [Edit(("defaults", "provider"), '"openai"')])
    written = home.global_file.read_text().splitlines()
    assert [line for line in written if "_secret" in line or "${" in line] == lines
    (backup,) = backups(home).values()
    assert [line for line in backup.splitlines() if "_secret" in line or "${" in line] == lines


_LEAVES = st.one_of(st.integers(0, 3), st.sampled_from(["x", "${VAR}"]), st.just([1, "# no"]))
_NAMES = st.sampled_from(["a", "b", "model", "theme", "shell"])
_TABLE = st.dictionaries(_NAMES, _LEAVES, min_size=1, max_size=3)
_HEADERS = st.sampled_from(
    [
        "agent",
        "agent.c",
        "agent.tools.d",
        "agents.p",
        "agents.p.e",
        "tools.f",
        "runtime.cli",
        "runtime",
        "runtime.g",
        "defaults",
        "profiles.p",
        "profiles.q",
        "store",
    ]
)


@settings(deadline=None)
@given(
    tables=st.lists(st.tuples(_HEADERS, _TABLE), unique_by=lambda row: row[0], max_size=7),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_whatever_the_sections_the_text_ends_up_saying_what_was_read(
    tmp_path_factory: pytest.TempPathFactory, tables: list[tuple[str, dict[str, object]]], end: str
) -> None:
    lines: list[str] = []
    for header, table in tables:
        lines += [f"# {header}", f"[{header}]"]
        lines += [f"{name} = {literal_of(value)}  # {name}" for name, value in table.items()]
    path = tmp_path_factory.mktemp("home") / "config.toml"
    path.write_bytes(end.join(lines).encode())
    read = migrated(tomllib.loads(path.read_text()))
    migrate_config(path)
    raw = path.read_bytes()
    assert raw.count(b"\n") == raw.count(end.encode())
    written = tomllib.loads(raw.decode())
    assert not migrated(written).changed
    assert _without_empty(written) == _without_empty(read.data)


def _without_empty(table: dict[str, object]) -> dict[str, object]:
    inner = {k: _without_empty(v) if isinstance(v, dict) else v for k, v in table.items()}
    return {name: value for name, value in inner.items() if value != {}}


def test_the_home_of_a_start_is_the_one_migrated(tmp_path: Path) -> None:
    paths = PathSettings(tmp_path)
    paths.state_dir.mkdir()
    paths.config_file.write_text("[agent]\nmodel = 'm'\n")
    (line,) = migrate_at_start(paths.config_file)
    assert line.startswith(f"{paths.config_file}: migrated: [agent] is now [defaults]; the old ")
    assert load_validated(None, paths=paths, environ={}).config.defaults.model == "m"
