"""Variables and `.env` (specification lemon_core 10.1, 10.2)."""

from __future__ import annotations

import pytest

from lemon_core.config.env import KNOWN_PROVIDERS
from lemon_core.config.variables import VARIABLES
from lemon_core.tests.config.homes import Home


def test_variable_names_and_keys_are_unique() -> None:
    assert len({variable.name for variable in VARIABLES}) == len(VARIABLES)
    assert len({variable.path for variable in VARIABLES}) == len(VARIABLES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", True), ("1", True), ("YES", True), ("on", True), ("False", False), ("0", False)],
)
def test_booleans(home: Home, text: str, expected: bool) -> None:
    home.write(f"gateway.auto_resume = {'false' if expected else 'true'}")
    loaded = home.load({"LEMON_GATEWAY_AUTO_RESUME": text})
    assert loaded.config.gateway.auto_resume is expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("many", "LEMON_GATEWAY_MAX_CONCURRENT_RUNS: expected a whole number, ignored"),
        ("0", "LEMON_GATEWAY_MAX_CONCURRENT_RUNS: must be at least 1, not 0; ignored"),
        ("", None),
        ("  ", None),
    ],
)
def test_what_cannot_be_read_leaves_the_layer_below(
    home: Home, text: str, told: str | None
) -> None:
    home.write("gateway.max_concurrent_runs = 5")
    loaded = home.load({"LEMON_GATEWAY_MAX_CONCURRENT_RUNS": text})
    assert loaded.config.gateway.max_concurrent_runs == 5
    assert loaded.warnings == (() if told is None else (told,))


def test_an_unknown_feature_state_is_off(home: Home) -> None:
    loaded = home.load({"LEMON_FEATURE_SESSION_SEARCH": "maybe"})
    assert loaded.config.features.session_search == "off"
    assert loaded.warnings[0].endswith("; read as off")


def test_provider_variables_have_no_prefix(home: Home) -> None:
    home.write("[providers.my-proxy]\napi = 'openai-completions'\nbase_url = 'http://a'\n")
    environ = {
        "OPENAI_API_KEY": "k1",
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
        "OPENAI_CODEX_API_KEY": "k2",
        "MY_PROXY_API_KEY": "k3",
        "TAVILY_API_KEY": "k4",
        "ANTHROPIC_API_KEY": " ",
    }
    loaded = home.load(environ)
    assert loaded.warnings == ()
    rows = loaded.config.providers
    assert sorted(rows) == ["my-proxy", "openai", "openai-codex"]
    assert (rows["openai"].api_key, rows["openai"].base_url) == ("k1", "http://127.0.0.1:1/v1")
    assert (rows["my-proxy"].api_key, rows["my-proxy"].base_url) == ("k3", "http://a")


def test_a_variable_joins_the_row_however_it_is_spelled(home: Home) -> None:
    home.write("[providers.openai_codex]\nauth_source = 'api_key'\n")
    rows = home.load({"OPENAI_CODEX_API_KEY": "k"}).config.providers
    assert list(rows) == ["openai_codex"]
    assert rows["openai_codex"].api_key == "k"


def test_a_key_never_reaches_a_base_url_of_the_project(home: Home) -> None:
    """DESIGN section 6: a key belongs to the URL of the environment or the global file."""
    home.write("[providers.openai]\napi_key = 'mine'\n")
    home.write_project("[providers.openai]\nbase_url = 'http://evil'\n")
    assert home.load().config.providers["openai"].base_url is None


def test_a_meaningless_base_url_is_passed_over(home: Home) -> None:
    loaded = home.load({"OPENAI_BASE_URL": "localhost:1"})
    assert "openai" not in loaded.config.providers or (
        loaded.config.providers["openai"].base_url is None
    )
    assert loaded.warnings == (
        "OPENAI_BASE_URL: must start with http:// or https://, not 'localhost:1'; ignored",
    )


def test_the_known_providers_are_distinct() -> None:
    assert len(set(KNOWN_PROVIDERS)) == len(KNOWN_PROVIDERS)


def test_dotenv_fills_gaps_only(home: Home) -> None:
    home.write_dotenv(
        """\
        # comment
        export OPENAI_API_KEY="from file"
        LEMON_THEME='dark'
        BASE=http://127.0.0.1
        OPENAI_BASE_URL=${BASE}:${PORT}/v1
        """
    )
    loaded = home.load({"LEMON_THEME": "mine", "PORT": "8"})
    assert loaded.config.runtime.theme == "mine"
    assert loaded.config.providers["openai"].api_key == "from file"
    assert loaded.config.providers["openai"].base_url == "http://127.0.0.1:8/v1"
    assert loaded.environ["LEMON_THEME"] == "mine"
    assert loaded.environ["BASE"] == "http://127.0.0.1"


def test_dotenv_of_another_directory(home: Home) -> None:
    home.write_dotenv("LEMON_THEME=home\n")
    other = home.paths.home / "secrets"
    other.mkdir()
    (other / ".env").write_text("LEMON_THEME=other\n")
    assert home.load().config.runtime.theme == "home"
    for spelled in (str(other), "~/secrets"):
        assert home.load({"LEMON_DOTENV_DIR": spelled}).config.runtime.theme == "other"
    assert home.load({"LEMON_DOTENV_DIR": "~/none"}).config.runtime.theme == "lemon"


def test_a_line_of_dotenv_that_cannot_be_read_warns(home: Home) -> None:
    home.write_dotenv("LEMON_THEME=dark\nthis is not = a line = 'x\n")
    loaded = home.load()
    assert loaded.config.runtime.theme == "dark"
    assert loaded.warnings == (
        f"{home.paths.state_dir}/.env:2: not of the form NAME=value, ignored",
    )
