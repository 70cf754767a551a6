"""Where values come from, and the control plane's layer (specification lemon_core 10.1)."""

from __future__ import annotations

from lemon_core.config import LemonConfig, keys
from lemon_core.config.contributed import Contributed
from lemon_core.config.load import with_stored
from lemon_core.config.origins import Origin, Shadowed, explain, overridden
from lemon_core.tests.config.homes import Home
from lemon_core.tests.config.pantry import Pantry


def test_every_value_has_an_origin(home: Home) -> None:
    origins = explain(home.load())
    assert origins["gateway.health_port"] == Origin(4042, "default")
    assert origins["profiles.default.status"] == Origin("active", "default")
    assert {origin.layer for origin in origins.values()} == {"default"}
    dump = LemonConfig().model_dump(mode="json")
    assert set(origins) == {".".join(map(str, key.path)) for key in keys.walk(dump, LemonConfig)}


def test_a_value_is_shown_with_what_it_shadows_nearest_first(home: Home) -> None:
    """DESIGN ruling 17: a shadowed value is shown as shadowed."""
    home.write("[defaults]\nmodel = 'global'\nprovider = 'openai'\n")
    home.write_project("[defaults]\nmodel = 'project'\n")
    loaded = home.load(
        {"LEMON_DEFAULT_MODEL": "variable"}, profile_defaults={"defaults": {"model": "profile"}}
    )
    loaded = with_stored(loaded, {"defaults.model": "stored", "defaults.provider": "groq"})
    origins = explain(loaded)
    assert origins["defaults.model"] == Origin(
        "variable",
        "environment",
        (
            Shadowed("control_plane", "stored"),
            Shadowed("project", "project"),
            Shadowed("global", "global"),
            Shadowed("profile", "profile"),
        ),
    )
    assert origins["defaults.provider"] == Origin(
        "groq", "control_plane", (Shadowed("global", "openai"),)
    )
    assert overridden(loaded) == {"defaults.model": "environment"}


def test_lists_are_one_value_and_credentials_are_hidden(home: Home) -> None:
    home.write(
        """
        [providers.openai]
        api_key = "sk-hidden"
        models = ["a", "b"]
        [[gateway.rpc.tokens]]
        id = "desk"
        secret = "DESK"
        """
    )
    loaded = home.load({"OPENAI_API_KEY": "sk-other"})
    origins = explain(loaded)
    assert origins["providers.openai.models"] == Origin(["a", "b"], "global")
    assert origins["providers.openai.api_key"] == Origin(
        "[REDACTED]", "environment", (Shadowed("global", "[REDACTED]"),)
    )
    tokens = origins["gateway.rpc.tokens"]
    assert tokens.layer == "global"
    assert "sk-" not in repr(origins)
    assert "DESK" not in repr(origins)


def test_a_policy_that_a_project_narrows_is_the_projects(home: Home) -> None:
    home.write("[profiles.default.tool_policy]\ndeny = ['read']\n")
    home.write_project("[profiles.default.tool_policy]\ndeny = ['bash']\n")
    origin = explain(home.load())["profiles.default.tool_policy"]
    assert origin.layer == "project"
    assert [lower.layer for lower in origin.shadowed] == ["global"]


# -- overrides that mean nothing -------------------------------------------------------------


def test_an_override_that_means_nothing_is_told_and_ignored(home: Home) -> None:
    stored = {
        "gateway.max_concurrent_runs": 0,
        "gateway.engine": "x",
        "gateway.health_port": 5,
        "gateway.helth_port": 6,
        "store.path": "/elsewhere",
        "logging.file": "/elsewhere",
        "no path": 1,
        "runtime.theme": None,
        "providers.openai": {"base_url": "nowhere"},
        "features.session_search": "perhaps",
    }
    loaded = with_stored(home.load(), stored)
    assert loaded.config == LemonConfig.model_validate({"gateway": {"health_port": 5}})
    told = dict(line.removeprefix("stored override ").split(": ", 1) for line in loaded.warnings)
    assert sorted(told) == sorted(set(stored) - {"gateway.health_port"})
    assert told["gateway.max_concurrent_runs"] == "must be at least 1, not 0; ignored"
    assert told["gateway.helth_port"].endswith("did you mean health_port?; ignored")
    assert told["gateway.engine"].startswith("removed: ")
    assert told["store.path"].startswith("cannot be set in the store, ")
    assert told["no path"].startswith("'no path' is no dotted path of a key")
    assert told["providers.openai"].startswith("providers.openai.base_url: must start with http")
    assert all(text.endswith("; ignored") for text in told.values())


def test_overrides_that_do_not_fit_the_rest_are_ignored_together(home: Home) -> None:
    home.write("[router]\nengine_target = 'unix:/a'\n")
    stored = {'"router".engine_targets': ["unix:/b"], "defaults.model": "m", "a b": 1}
    loaded = with_stored(home.load(), stored)
    assert loaded.config.router.targets == ("unix:/a",)
    assert loaded.config.defaults.model == "m"
    assert loaded.warnings[:1] == (
        "stored overrides: router.engine_target: set either engine_target or engine_targets; "
        "ignored",
    )


def test_applying_overrides_again_replaces_the_earlier_ones(home: Home) -> None:
    loaded = with_stored(home.load(), {"defaults.model": "one", "runtime.theme": "dark"})
    loaded = with_stored(loaded, {"defaults.model": "two"})
    assert (loaded.config.defaults.model, loaded.config.runtime.theme) == ("two", "lemon")


def test_an_override_reaches_a_contributed_section(home: Home) -> None:
    contributed = Contributed(sections=(("pantry", Pantry),))
    loaded = with_stored(home.load(contributed=contributed), {"pantry.shelves": 9})
    assert loaded.config.section("pantry", Pantry).shelves == 9
    assert explain(loaded)["pantry.shelves"] == Origin(9, "control_plane")
