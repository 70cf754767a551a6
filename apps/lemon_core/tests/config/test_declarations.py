"""Declared variables (specification lemon_core 10.2)."""

from __future__ import annotations

import pytest

from lemon_core.config.declarations import (
    DuplicateDeclaration,
    Env,
    EnvDeclaration,
    EnvReading,
    core_declarations,
    open_env,
)
from lemon_core.config.variables import VARIABLES

PORT = EnvDeclaration("port", "APP_PORT", ("OLD_PORT", "OLDER_PORT"), type="integer", default=80)
KEY = EnvDeclaration("key", "APP_KEY", secret=True, required=True)


def test_the_variable_then_its_aliases_then_the_defaults() -> None:
    environ = {"APP_PORT": "1", "OLD_PORT": "2", "OLDER_PORT": "3"}
    found = []
    for name in ("APP_PORT", "OLD_PORT", "OLDER_PORT"):
        found.append(Env((PORT,), dict(environ)).get("port", 9))
        del environ[name]
    assert found == [1, 2, 3]
    assert Env((PORT,), {}).get("port", 9) == 9
    assert Env((PORT,), {}).get("port") == 80
    with pytest.raises(KeyError):
        Env((PORT,), {}).get("door")


def test_what_cannot_be_read_is_passed_over() -> None:
    env = Env((PORT,), {"APP_PORT": "many", "OLD_PORT": " ", "OLDER_PORT": "3"})
    assert env.get("port") == 3


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", " a b ", "a b"),
        ("integer", "-3", -3),
        ("float", "2.5", 2.5),
        ("boolean", "On", True),
        ("list", "a, b,,c ", ["a", "b", "c"]),
        ("list", " , ", None),
        ("bytes", "4096", 4096),
        ("bytes", "64KiB", 65_536),
        ("bytes", "16 mb", 16_777_216),
        ("bytes", "1G", 1_073_741_824),
        ("bytes", "big", None),
        ("bytes", "-1", None),
    ],
)
def test_each_type_reads_its_own_text(kind: str, text: str, value: object) -> None:
    declared = EnvDeclaration("x", "X", type=kind)  # type: ignore[arg-type]  # from the table above
    assert Env((declared,), {"X": text}).get("x") == value


def test_a_snapshot_tells_sources_and_hides_secrets() -> None:
    env = Env((PORT, KEY), {"OLD_PORT": "2", "APP_KEY": "s3cret"})
    assert env.snapshot() == (
        EnvReading(PORT, 2, "alias", "OLD_PORT"),
        EnvReading(KEY, "***REDACTED***", "env", "APP_KEY"),
    )
    assert env.get("key") == "s3cret"
    assert "s3cret" not in repr(env) + repr(env.snapshot())
    empty = Env((PORT, KEY), {})
    assert empty.snapshot() == (EnvReading(PORT, 80, "default"), EnvReading(KEY, None, "default"))
    assert (empty.missing(), env.missing()) == ((KEY,), ())


@pytest.mark.parametrize(
    "other",
    [
        EnvDeclaration("port", "OTHER"),
        EnvDeclaration("other", "APP_PORT"),
        EnvDeclaration("other", "OTHER", ("OLDER_PORT",)),
        EnvDeclaration("other", "OLD_PORT"),
    ],
)
def test_names_are_declared_once(other: EnvDeclaration) -> None:
    with pytest.raises(DuplicateDeclaration, match="declared twice"):
        Env((PORT, other), {})


def test_core_declares_the_variables_of_its_keys() -> None:
    declared = {item.name: item for item in core_declarations()}
    assert {variable.name for variable in VARIABLES} < {one.env_var for one in declared.values()}
    assert declared["process.secrets_master_key"].secret
    assert open_env({"LEMON_WEB_PORT": "1"}).get("process.web_port") == 1
    runs = declared["gateway.max_concurrent_runs"]
    assert (runs.env_var, runs.type, runs.default) == (
        "LEMON_GATEWAY_MAX_CONCURRENT_RUNS",
        "integer",
        2,
    )
    assert (runs.area, runs.apps, runs.secret) == ("gateway", ("lemon_core",), False)
    assert declared["runtime.tools.web.search.api_key"].secret
    assert not declared["runtime.compaction.reserve_tokens"].secret
    env = open_env({"LEMON_LOG_LEVEL": "debug", "APP_PORT": "1"}, [PORT])
    assert (env.get("logging.level"), env.get("port")) == ("debug", 1)
    with pytest.raises(DuplicateDeclaration, match="LEMON_LOG_LEVEL"):
        open_env({}, [EnvDeclaration("mine", "LEMON_LOG_LEVEL", apps=("other",))])
