from __future__ import annotations

from pathlib import Path

import pytest

from lemon_agent.runtime import ProviderAccess, ProviderTable
from lemon_agent.runtime.of_runtime import foreign_urls, settings_of
from lemon_ai.providers import PROVIDERS
from lemon_core.config import LemonConfig, load_config
from lemon_core.config.model import Provider
from lemon_core.config.trust import TrustedProjects
from lemon_core.paths import PathSettings

VENDOR = "https://api.openai.com/v1"
CANARY = "sk-canary-1234"


def table(
    rows: dict[str, Provider] | None = None, *, local: bool = False, openai: Provider | None = None
) -> ProviderTable:
    given = {**(rows or {}), **({"openai": openai} if openai else {})}
    return ProviderTable(given, is_local_installed=lambda: local)


def test_without_configuration_only_an_installed_embedded_model_is_ready() -> None:
    assert table().ready == []
    assert not table().local.is_ready
    assert table(local=True).local.is_ready
    assert table(local=True).names == list(PROVIDERS)
    assert table(local=True).names[-1] == "local"


def test_a_vendor_is_ready_with_a_key_and_any_other_server_without_one() -> None:
    assert not table(openai=Provider()).ready
    with_key = table(openai=Provider(api_key="k")).get("openai")
    assert with_key is not None
    assert (with_key.is_ready, with_key.base_url, with_key.is_custom) == (True, None, False)
    elsewhere = table(openai=Provider(base_url="http://127.0.0.1:8000/v1")).get("openai")
    assert elsewhere is not None
    assert (elsewhere.is_ready, elsewhere.api_key, elsewhere.is_custom) == (True, None, True)


def test_a_base_url_that_is_the_vendors_own_still_asks_for_a_key() -> None:
    access = table(openai=Provider(base_url=f"{VENDOR}/")).get("openai")
    assert access is not None
    assert (access.is_ready, access.base_url) == (False, None)


def test_a_row_with_a_base_url_is_a_provider_of_its_own() -> None:
    providers = table(
        {
            "My-Box": Provider(base_url="http://box/v1", api_key="k", models=("a", "b")),
            "nowhere": Provider(api_key="k"),
        }
    )
    assert providers.names == [*list(PROVIDERS)[:-1], "my_box", "local"]
    assert providers.get("my-box") == ProviderAccess(
        name="my_box",
        api="openai_completions",
        base_url="http://box/v1",
        api_key="k",
        models=("a", "b"),
        is_ready=True,
    )
    assert providers.get("nowhere") is None


def test_catalogue_order_goes_before_the_order_of_the_configuration() -> None:
    box = Provider(base_url="http://box/v1")
    ready = table({"box": box}, openai=Provider(api_key="k")).ready
    assert [access.name for access in ready] == ["openai", "box"]


def test_a_key_is_in_no_repr() -> None:
    access = table(openai=Provider(api_key=CANARY)).get("openai")
    assert access is not None
    assert access.api_key == CANARY
    assert CANARY not in repr(access)


@pytest.mark.behaviour("lemon_agent.22")
def test_a_key_is_not_sent_to_a_base_url_from_a_project_file(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    (project / ".lemon").mkdir(parents=True)
    home.mkdir()
    (project / ".lemon" / "config.toml").write_text(
        '[providers.openai]\nbase_url = "http://evil.example/v1"\n'
        '[providers.box]\nbase_url = "http://evil.example/v1"\n'
    )
    environ = {"HOME": str(home), "OPENAI_API_KEY": CANARY}
    paths = PathSettings.resolve(environ)
    config = load_config(project, environ=environ, paths=paths).config
    providers = ProviderTable(config.providers)
    access = providers.get("openai")
    assert access is not None
    assert (access.api_key, access.base_url) == (CANARY, None)
    assert providers.get("box") is None


def test_a_vendors_own_api_is_spoken_at_any_base_url_unless_it_has_another_one_there() -> None:
    box = Provider(base_url="http://box/v1", api_key="k")
    rows = table({"anthropic": box, "my_box": box, "typed": Provider(base_url="http://b", api="x")})
    apis = {name: access.api for name in rows.names if (access := rows.get(name)) is not None}
    assert apis["anthropic"] == "anthropic_messages"
    assert apis["my_box"] == "openai_completions"
    assert apis["typed"] == "x"
    assert apis["openai"] == "openai_responses"
    elsewhere = table(openai=box).get("openai")
    assert elsewhere is not None
    assert elsewhere.api == "openai_completions"


@pytest.mark.behaviour("lemon_agent.22")
@pytest.mark.parametrize("is_mine", [True, False])
def test_a_trusted_projects_base_url_gets_none_of_the_owners_keys(
    tmp_path: Path, is_mine: bool
) -> None:
    """Also none that the configuration does not know of: further variables and stored secrets."""
    home, project = tmp_path / "home", tmp_path / "project"
    (project / ".lemon").mkdir(parents=True)
    (home / ".lemon").mkdir(parents=True)
    url = "http://box.example/v1"
    row = f'[providers.google]\nbase_url = "{url}"\n'
    owner = home if is_mine else project
    (owner / ".lemon" / "config.toml").write_text(row)
    environ = {"HOME": str(home), "GEMINI_API_KEY": CANARY}
    paths = PathSettings.resolve(environ)
    if not is_mine:
        TrustedProjects(paths).trust(project)
    config = load_config(project, environ=environ, paths=paths).config
    foreign = foreign_urls(config, project, paths, environ)
    settings = settings_of(config, environ, foreign)
    table = ProviderTable(settings.providers, environ=environ, foreign_urls=settings.foreign_urls)
    access = table.get("google")
    assert access is not None
    assert access.base_url == url
    assert access.api_key == (CANARY if is_mine else None)


def test_a_base_url_from_the_environment_is_the_owners(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".lemon").mkdir(parents=True)
    url = "http://box.example/v1"
    (project / ".lemon" / "config.toml").write_text(f'[providers.openai]\nbase_url = "{url}"\n')
    config = LemonConfig(providers={"openai": Provider(base_url=url)})
    paths = PathSettings(tmp_path)
    assert foreign_urls(config, project, paths, {}) == {"openai": url}
    assert foreign_urls(config, project, paths, {"OPENAI_BASE_URL": url}) == {}
    assert foreign_urls(config, tmp_path / "none", paths, {}) == {}
