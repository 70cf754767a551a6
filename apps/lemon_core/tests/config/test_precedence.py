"""Which layer wins, for every key that has a variable (specification lemon_core 10.1, 10.2)."""

from __future__ import annotations

import json
import tomllib
from functools import reduce

import pytest

from lemon_core.config import LemonConfig, keys
from lemon_core.config.load import LoadedConfig, with_stored
from lemon_core.config.origins import explain, overridden
from lemon_core.config.variables import VARIABLES, Variable
from lemon_core.tests.config.homes import Home

# For each key two values, first as TOML spells it and not the default, then as a variable does.
CHOICES = {
    "defaults.thinking_level": ("'high'", "low"),
    "tui.theme": ("'dark'", "light"),
    "store.backend": ("'memory'", "sqlite"),
    "logging.level": ("'debug'", "error"),
    "runtime.compaction.trigger_ratio": ("0.25", "0.5"),
    "runtime.tools.web.search.provider": ("'perplexity'", "brave"),
    "runtime.tools.web.search.failover.provider": ("'perplexity'", "brave"),
    "runtime.tools.web.search.max_results": ("3", "4"),
    "runtime.tools.web.search.perplexity.base_url": ("'http://a'", "http://b"),
    "runtime.tools.web.fetch.firecrawl.base_url": ("'http://a'", "http://b"),
    "runtime.tools.web.fetch.max_chars": ("111", "112"),
    "runtime.tools.execute_code.timeout_ms": ("1111", "1112"),
    "runtime.tools.execute_code.kernel_mode": ("'session'", "per_call"),
    "runtime.tools.disclosure.max_results": ("11", "12"),
    "gateway.sms.webhook_bind": ("'10.0.0.1'", "10.0.0.2"),
    "gateway.sms.webhook_url": ("'http://a'", "http://b"),
    "gateway.voice.public_url": ("'http://a'", "http://b"),
}
KINDS = {
    "string": ("'below'", "above"),
    "integer": ("11", "12"),
    "list": ("['below', 'here']", "above, there"),
    "boolean": ("{flipped}", "{default}"),
    "features": ("'opt-in'", "on"),
}
# What has to be there for the values above to mean something.
ROUTING = """
runtime.provider_routing.credential_pools.below.providers = ["openai"]
runtime.provider_routing.credential_pools.above.providers = ["openai"]
runtime.provider_routing.profiles.below.fallback_providers = ["openai"]
runtime.provider_routing.profiles.above.fallback_providers = ["openai"]
"""
SAFE = {
    "defaults.model",
    "defaults.thinking_level",
    "runtime.compaction.enabled",
    "runtime.compaction.reserve_tokens",
    "runtime.compaction.keep_recent_tokens",
    "runtime.compaction.context_window_tokens",
    "runtime.compaction.trigger_ratio",
    "runtime.theme",
    "tui.theme",
}


def value_of(config: LemonConfig, variable: Variable) -> object:
    found: object = reduce(getattr, variable.path, config)
    return found


def spellings(variable: Variable) -> tuple[str, str]:
    """A value as TOML spells it, and another one as a variable does."""
    path = ".".join(variable.path)
    kind = "features" if variable.path[0] == "features" else variable.kind
    toml, text = CHOICES.get(path) or KINDS[kind]
    default, flipped = ("true", "false") if value_of(LemonConfig(), variable) else ("false", "true")
    return toml.format(flipped=flipped), text.format(default=default)


every_variable = pytest.mark.parametrize("variable", VARIABLES, ids=lambda row: row.name)


@pytest.mark.behaviour("lemon_core.28")
@every_variable
def test_the_global_file_beats_the_default(home: Home, variable: Variable) -> None:
    home.write(f"{'.'.join(variable.path)} = {spellings(variable)[0]}\n{ROUTING}")
    loaded = home.load()
    assert loaded.warnings == ()
    assert value_of(loaded.config, variable) != value_of(LemonConfig(), variable)


@pytest.mark.behaviour("lemon_core.28")
@every_variable
def test_a_variable_beats_the_files(home: Home, variable: Variable) -> None:
    toml, text = spellings(variable)
    path = ".".join(variable.path)
    alone = value_of(home.load({variable.name: text}).config, variable)
    home.write(f"{path} = {toml}\n{ROUTING}")
    if path in SAFE:
        home.write_project(f"{path} = {toml}")
    assert value_of(home.load().config, variable) != alone
    loaded = home.load({variable.name: text})
    assert loaded.warnings == ()
    assert value_of(loaded.config, variable) == alone


@pytest.mark.behaviour("lemon_core.28")
@every_variable
def test_a_project_beats_the_global_file_where_it_may(home: Home, variable: Variable) -> None:
    toml, text = spellings(variable)
    path = ".".join(variable.path)
    wanted = value_of(home.load({variable.name: text}).config, variable)
    home.write(f"{path} = {toml}\n{ROUTING}")
    before = value_of(home.load().config, variable)
    assert before != wanted
    other = json.dumps(wanted)  # which is TOML as well
    home.write_project(f"{path} = {other}")
    loaded = home.load()
    assert value_of(loaded.config, variable) == (wanted if path in SAFE else before)
    lines = [] if path in SAFE else ["may not set this", "lemon config trust"]
    assert [part in line for part, line in zip(lines, loaded.warnings, strict=True)] == [
        True for _ in lines
    ]
    home.trust()
    loaded = home.load()
    assert loaded.warnings == ()
    assert value_of(loaded.config, variable) == wanted


@pytest.mark.behaviour("lemon_core.28")
@every_variable
def test_the_control_plane_beats_the_files_and_a_variable_beats_it(
    home: Home, variable: Variable
) -> None:
    toml, text = spellings(variable)
    path = ".".join(variable.path)
    wanted = value_of(home.load({variable.name: text}).config, variable)
    home.write(f"{path} = {toml}\n{ROUTING}")
    home.write_project(f"{path} = {toml}")
    home.trust()
    below = value_of(home.load().config, variable)
    stored = {path: list(wanted) if isinstance(wanted, tuple) else wanted}
    loaded = with_stored(home.load(), stored)
    if variable.path[0] in ("store", "logging"):
        assert value_of(loaded.config, variable) == below
        assert "cannot be set in the store" in loaded.warnings[-1]
        return
    assert loaded.warnings == ()
    assert value_of(loaded.config, variable) == wanted
    assert explain(loaded)[path].layer == "control_plane"
    stored = {path: tomllib.loads(f"x = {toml}")["x"]}
    loaded = with_stored(home.load({variable.name: text}), stored)
    assert value_of(loaded.config, variable) == wanted
    assert explain(loaded)[path].layer == "environment"
    assert overridden(loaded) == {path: "environment"}
    overrides: dict[str, object] = {}
    keys.put(overrides, variable.path, stored[path])
    loaded = home.load({variable.name: text}, overrides)
    assert value_of(loaded.config, variable) == below
    assert explain(loaded)[path].layer == "call"


# Two values of a key in each group that has no variable.
WITHOUT_VARIABLE: dict[str, tuple[object, object]] = {
    "runtime.lanes.main": (5, 6),
    "runtime.async_followups.default_queue_mode": ("collect", "followup"),
    "runtime.tools.debug.enabled": (True, False),
    "runtime.channel": ("beta", "nightly"),
    "runtime.shell.timeout_ms": (1_000, 2_000),
    "runtime.provider_routing.credential_pools.a.providers": (["openai"], ["groq"]),
    "profiles.a.model": ("m1", "m2"),
    "providers.a.models": (["m1"], ["m2"]),
    "gateway.queue.cap": (1, 2),
    "gateway.projects.a.root": ("/a", "/b"),
    "gateway.bindings": ([{"transport": "a", "chat_id": 1}], []),
    "gateway.rpc.heartbeat_ms": (1, 2),
    "router.stream.idle_ms": (1, 2),
    "router.rpc.enabled": (True, False),
    "introspection.enabled": (False, True),
}


@pytest.mark.behaviour("lemon_core.28")
@pytest.mark.parametrize("path", WITHOUT_VARIABLE)
def test_the_layers_of_keys_without_a_variable(home: Home, path: str) -> None:
    names = tuple(path.split("."))
    one, two = (as_toml(names, value) for value in WITHOUT_VARIABLE[path])

    def shown(loaded: LoadedConfig) -> tuple[object, str]:
        value = keys.get(loaded.config.model_dump(mode="json", exclude_unset=True), names)
        return value, explain(loaded)[path].layer

    home.write(one)
    below = shown(home.load())
    assert below[1] == "global"
    home.write_project(two)
    assert shown(home.load()) == below
    home.trust()
    above = shown(home.load())
    assert (above[0] != below[0], above[1]) == (True, "project")
    loaded = with_stored(home.load(), {path: WITHOUT_VARIABLE[path][0]})
    assert shown(loaded) == (below[0], "control_plane")
    overrides: dict[str, object] = {}
    keys.put(overrides, names, WITHOUT_VARIABLE[path][1])
    loaded = with_stored(home.load(overrides=overrides), {path: WITHOUT_VARIABLE[path][0]})
    assert shown(loaded) == (above[0], "call")


def as_toml(names: tuple[str, ...], value: object) -> str:
    """One assignment; the tables in a list are inline."""
    text = json.dumps(value).replace('": ', '" = ')
    return f"{'.'.join(names)} = {text}"


@pytest.mark.behaviour("lemon_core.28")
def test_lists_are_replaced_and_tables_merge(home: Home) -> None:
    home.write(
        """
        runtime.extension_paths = ["a", "b"]
        [providers.openai]
        models = ["m1", "m2"]
        base_url = "http://a"
        """
    )
    overrides: dict[str, object] = {}
    keys.put(overrides, ("runtime", "extension_paths"), ["c"])
    keys.put(overrides, ("providers", "openai", "models"), ["m3"])
    config = home.load(overrides=overrides).config
    assert config.runtime.extension_paths == ("c",)
    assert config.providers["openai"].models == ("m3",)
    assert config.providers["openai"].base_url == "http://a"
