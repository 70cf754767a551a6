"""Which layer wins, for every key that has a variable (specification lemon_core 10.1, 10.2)."""

from __future__ import annotations

from functools import reduce

import pytest

from lemon_core.config import LemonConfig, keys
from lemon_core.config.env import VARIABLES, Variable
from lemon_core.tests.config.homes import Home

# For each key two values, first as TOML spells it and not the default, then as a variable does.
CHOICES = {
    "defaults.thinking_level": ("'high'", "low"),
    "tui.theme": ("'dark'", "light"),
    "store.backend": ("'memory'", "sqlite"),
    "logging.level": ("'debug'", "error"),
    "runtime.compaction.trigger_ratio": ("0.25", "0.5"),
}
KINDS = {
    "text": ("'below'", "above"),
    "integer": ("11", "12"),
    "boolean": ("{flipped}", "{default}"),
    "features": ("'opt-in'", "on"),
}
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
    home.write(f"{'.'.join(variable.path)} = {spellings(variable)[0]}")
    loaded = home.load()
    assert loaded.warnings == ()
    assert value_of(loaded.config, variable) != value_of(LemonConfig(), variable)


@pytest.mark.behaviour("lemon_core.28")
@every_variable
def test_a_variable_beats_the_files(home: Home, variable: Variable) -> None:
    toml, text = spellings(variable)
    path = ".".join(variable.path)
    alone = value_of(home.load({variable.name: text}).config, variable)
    home.write(f"{path} = {toml}")
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
    home.write(f"{path} = {toml}")
    before = value_of(home.load().config, variable)
    assert before != wanted
    home.write_project(f"{path} = '{text}'" if toml.startswith("'") else f"{path} = {text}")
    loaded = home.load()
    assert value_of(loaded.config, variable) == (wanted if path in SAFE else before)
    assert [("may not set this" in line) for line in loaded.warnings] == [True] * (path not in SAFE)


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
