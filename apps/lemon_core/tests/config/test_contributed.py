"""Sections, channels and variables that apps contribute (specification lemon_core 10.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from lemon_core import errors
from lemon_core.capabilities import Capabilities
from lemon_core.config import ConfigError, LemonConfig
from lemon_core.config.contributed import Contributed, SectionConflict, compose
from lemon_core.config.declarations import DuplicateDeclaration, EnvDeclaration
from lemon_core.config.fields import Positive, Section
from lemon_core.config.gateway_config import GatewayConfig
from lemon_core.profiles import Profile, parse_profile, render_profile
from lemon_core.tests.config.homes import Home
from lemon_core.tests.config.pantry import Pantry


class Servers(Section):
    """A section below one of core's."""

    limit: Positive = 16


HERE = "lemon_core.tests.config.test_contributed"
BOTH = Contributed(
    sections=(("pantry", Pantry), ("runtime.servers", f"{HERE}:Servers")),
    declarations=(
        EnvDeclaration("pantry.shelves", "PANTRY_SHELVES", ("OLD_SHELVES",), type="integer"),
        EnvDeclaration("pantry_door", "PANTRY_DOOR"),
    ),
)


@dataclass(frozen=True)
class Pigeons:
    """A channel of birds."""

    id: str = "pigeons"

    def resolve(self, section: Mapping[str, object]) -> dict[str, object]:
        return {"birds": 2, **section}

    def enabled(self, configured: bool) -> bool:
        return configured

    def validate(self, section: Mapping[str, object]) -> list[str]:
        found = []
        if "birds" in section and not isinstance(section["birds"], int):
            found.append("birds: must be a whole number")
        if section.get("sky") == "closed":
            found.append("nothing can fly")
        return found


BIRDS = Contributed(channels=(Pigeons(),))


def test_a_contributed_section_is_typed_and_checked(home: Home) -> None:
    home.write("[pantry]\nshelves = 5\n[runtime.servers]\nlimit = 2\n[runtime]\ntheme = 'dark'\n")
    loaded = home.load(contributed=BOTH)
    assert loaded.warnings == ()
    assert loaded.config.section("pantry", Pantry) == Pantry(shelves=5)
    assert loaded.config.section("runtime.servers", Servers).limit == 2
    assert loaded.config.runtime.theme == "dark"
    assert isinstance(loaded.config, LemonConfig)
    home.write("[pantry]\nshelves = 0\nshelfs = 1\n")
    with pytest.raises(ConfigError) as caught:
        home.load(contributed=BOTH)
    assert caught.value.errors == (
        f"{home.global_file}:2: pantry.shelves: must be at least 1, not 0",
    )


def test_without_its_owner_a_section_is_unknown(home: Home) -> None:
    home.write("[pantry]\nshelves = 5\n")
    loaded = home.load()
    assert loaded.warnings == (f"{home.global_file}:1: pantry: unknown section, ignored",)
    assert loaded.config.section("pantry", Pantry) == Pantry()


def test_a_section_that_nobody_sets_is_not_even_imported(home: Home) -> None:
    absent = Contributed(sections=(("pantry", "no_such_module:Model"),))
    assert home.load(contributed=absent).config == LemonConfig()
    home.write("[pantry]\nshelves = 5\n")
    with pytest.raises(ModuleNotFoundError):
        home.load(contributed=absent)


def test_marks_and_layers_hold_for_contributed_keys_too(home: Home) -> None:
    home.write_project(
        "[pantry]\nshelves = 5\nlabel = 'wet'\n[runtime.compaction]\nenabled = false"
    )
    home.write("[runtime.servers]\nlimit = 2")
    loaded = home.load({"OLD_SHELVES": "7"}, contributed=BOTH)
    assert loaded.config.section("pantry", Pantry) == Pantry(shelves=7, label="wet")
    assert not loaded.config.runtime.compaction.enabled
    assert [line.split(": ")[1] for line in loaded.warnings[:-1]] == ["pantry.shelves"]
    loaded = home.load({"PANTRY_SHELVES": "0", "OLD_SHELVES": "7"}, contributed=BOTH)
    assert loaded.config.section("pantry", Pantry).shelves == 3
    assert loaded.warnings[-1] == "PANTRY_SHELVES: must be at least 1, not 0; ignored"


@pytest.mark.parametrize("path", ["gateway", "gateway.rpc", "gateway.max_concurrent_runs.x"])
def test_a_section_that_is_there_already_is_refused(path: str) -> None:
    with pytest.raises(SectionConflict, match=path.removesuffix(".x")):
        compose(((path, Pantry),), ())


def test_two_owners_of_one_section_are_refused(home: Home) -> None:
    twice = Contributed(sections=(("pantry", Pantry), ("pantry", Servers)))
    with pytest.raises(SectionConflict, match="pantry"):
        home.load(contributed=twice)


def test_a_variable_of_core_is_not_declared_again(home: Home) -> None:
    again = Contributed(
        sections=BOTH.sections, declarations=(EnvDeclaration("pantry.shelves", "LEMON_THEME"),)
    )
    with pytest.raises(DuplicateDeclaration, match="LEMON_THEME"):
        home.load(contributed=again)


def test_a_profile_names_contributions_and_components_add_some() -> None:
    profile = Profile(
        "p",
        config_sections={"runtime.servers": f"{HERE}:Servers"},
        gateway_channels=(f"{HERE}:BIRD",),
        env_declarations=(f"{HERE}:DECLARED",),
    )
    assert parse_profile(render_profile(profile), where="here") == profile
    capabilities = Capabilities()
    capabilities.contribute("config_sections", ("pantry", Pantry))
    capabilities.contribute("gateway_channels", Pigeons("doves"))
    found = Contributed.of(profile, capabilities)
    assert found.sections == (("runtime.servers", f"{HERE}:Servers"), ("pantry", Pantry))
    assert [channel.id for channel in found.all_channels()] == ["pigeons", "doves"]
    assert [item.name for item in found.all_declarations()] == ["pantry.shelves"]
    assert [item.name for item in found.variables()] == ["PANTRY_SHELVES"]


BIRD = Pigeons()
DECLARED = (EnvDeclaration("pantry.shelves", "PANTRY_SHELVES", type="integer"),)


# -- channels --------------------------------------------------------------------------------


@pytest.mark.behaviour("lemon_core.31")
def test_a_channel_resolves_and_checks_its_own_section(home: Home) -> None:
    home.write("[gateway]\nenable_pigeons = true\n[gateway.pigeons]\nloft = 'north'\n")
    loaded = home.load(contributed=BIRDS)
    assert loaded.warnings == ()
    gateway = GatewayConfig.load(home.project, paths=home.paths, environ={}, contributed=BIRDS)
    assert gateway.get("pigeons") == {"birds": 2, "loft": "north"}
    assert (gateway.get("pigeons.loft"), gateway.get("pigeons.none", 1)) == ("north", 1)
    assert gateway.get("enable_pigeons") is True
    assert GatewayConfig(loaded.config.gateway).get("pigeons.birds") == 2
    assert GatewayConfig(loaded.config.gateway).get("rpc.enabled") is False
    assert GatewayConfig(loaded.config.gateway).get("model_fields") is None
    home.write("[gateway.pigeons]\nbirds = 'two'\nsky = 'closed'\n")
    with pytest.raises(ConfigError) as caught:
        home.load(contributed=BIRDS)
    assert caught.value.errors == (
        f"{home.global_file}:1: gateway.pigeons: nothing can fly",
        f"{home.global_file}:2: gateway.pigeons.birds: must be a whole number",
    )


@pytest.mark.behaviour("lemon_core.31")
def test_a_channel_that_nobody_configured_is_off_with_its_defaults(home: Home) -> None:
    gateway = GatewayConfig.load(home.project, paths=home.paths, environ={}, contributed=BIRDS)
    assert (gateway.get("enable_pigeons"), gateway.get("pigeons.birds")) == (False, 2)


@pytest.mark.behaviour("lemon_core.31")
def test_without_channels_there_is_no_section_of_one(home: Home) -> None:
    home.write("[gateway]\nenable_pigeons = true\n[gateway.pigeons]\nloft = 'north'\n")
    loaded = home.load()
    assert [line.split(": ")[1] for line in loaded.warnings] == [
        "gateway.enable_pigeons",
        "gateway.pigeons",
    ]
    assert all("unknown key, ignored" in line for line in loaded.warnings)
    assert loaded.config == LemonConfig()


@pytest.mark.behaviour("lemon_core.31")
def test_the_source_of_core_names_no_chat_platform() -> None:
    platforms = "telegram|discord|xmtp|slack|whatsapp|mattermost|imessage|farcaster"
    root = Path(errors.__file__).parent
    sources = [path for path in root.rglob("*.py") if "tests" not in path.relative_to(root).parts]
    assert len(sources) > 50
    naming = [
        path.name
        for path in sources
        if re.search(platforms, path.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert naming == []


def test_composing_twice_gives_one_model() -> None:
    sections: tuple[tuple[str, type[BaseModel]], ...] = (("pantry", Pantry),)
    assert compose(sections, ()) is compose(sections, ())
