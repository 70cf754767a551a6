"""The first-run journey (specification lemon_cli 3, 10.4 to 10.7)."""

from __future__ import annotations

import stat

import anyio
import pytest

from lemon_agent.runtime import ProviderTable
from lemon_cli import setup_state as states
from lemon_cli.setup_state import SetupState, setup_required, setup_state
from lemon_cli.tests.home import Home
from lemon_cli.tests.vendor import vendor
from lemon_core.config.load import load_validated

KEY = "sk-good"


def state_of(home: Home) -> SetupState:
    return anyio.run(setup_state, home.context)


@pytest.fixture(params=[True, False], ids=["embedded", "bare"])
def embedded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the embedded model is installed: a machine either has it or not."""
    is_there: bool = request.param
    defaults = ProviderTable.__init__.__kwdefaults__
    patched = {**(defaults or {}), "is_local_installed": lambda: is_there}
    monkeypatch.setattr(ProviderTable.__init__, "__kwdefaults__", patched)
    return is_there


@pytest.mark.behaviour("lemon_cli.4")
def test_setup_in_an_empty_home(
    home: Home, embedded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert home.lemon("setup", "-n") == 0
    said = capsys.readouterr()
    assert said.out.count("[pending]") == (2 if embedded else 3)
    for path in (home.paths.config_file, home.paths.state_dir / "secrets_master_key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.paths.state_dir.stat().st_mode) == 0o700
    if embedded:
        assert "Setup is complete." in said.out
        assert "embedded model answers" in said.out
    else:
        assert "Setup is not complete." in said.out
        assert "provider: lemon setup provider" in said.out
    assert "auto_resume = true" in said.out
    state = state_of(home)
    assert (state.config.complete, state.secrets.complete) == (True, True)
    assert state.provider.complete is embedded
    assert state.provider.reason == ("embedded_model" if embedded else "no_ready_provider")


@pytest.mark.behaviour("lemon_cli.4")
def test_a_second_setup_changes_no_file(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.lemon("setup", "-n")
    before = home.files()
    home.lemon("setup", "-n")
    assert home.files() == before
    assert len(before) == 2


def test_the_written_file_is_valid_and_sets_what_it_says(home: Home) -> None:
    home.lemon("setup", "-n")
    loaded = load_validated(home.paths.home, paths=home.paths, environ=home.environ)
    assert loaded.warnings == ()
    assert loaded.config.defaults.provider is None
    assert loaded.config.gateway.auto_resume is True
    assert loaded.config.gateway.max_concurrent_runs == 2
    assert home.config.count("# ") >= 6


@pytest.mark.behaviour("lemon_cli.5")
def test_a_malformed_file_makes_setup_required_and_stays(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_config("[defaults\n")
    assert anyio.run(setup_required, home.context)
    problem = state_of(home).config.problem
    assert problem is not None
    assert f"{home.paths.config_file}:1" in problem or "line 1" in problem
    assert home.lemon("setup", "-n") == 1
    assert home.config == "[defaults\n"
    said = capsys.readouterr().out
    assert "Setup is complete" not in said
    assert "lemon config validate" in said


@pytest.mark.behaviour("lemon_cli.5")
def test_each_way_of_not_being_ready_has_its_reason(home: Home) -> None:
    home.lemon("setup", "-n")
    home.write_config('[defaults]\nprovider = "openai"\nmodel = "anthropic:claude"\n')
    step = state_of(home).provider
    assert (step.complete, step.reason) == (False, "model_provider_mismatch")
    home.write_config(
        '[defaults]\nprovider = "openai"\n[providers.openai]\napi_key_secret = "MY_KEY"\n'
    )
    step = state_of(home).provider
    assert (step.complete, step.reason) == (False, "credential_not_usable")
    assert anyio.run(setup_required, home.context)
    home.extra = {"MY_KEY": KEY}
    step = state_of(home).provider
    assert (step.complete, step.credential_ready, step.reason) == (True, True, None)
    assert not anyio.run(setup_required, home.context)


@pytest.mark.behaviour("lemon_cli.5")
def test_a_secret_that_cannot_be_decrypted_is_no_credential(home: Home) -> None:
    home.lemon("setup", "-n")
    home.store_secret("llm_groq_api_key", KEY)
    assert state_of(home).provider == states.ProviderStep(True, "groq", None, True)
    home.lemon("secrets", "init", "--force")
    step = state_of(home).provider
    assert (step.complete, step.provider, step.reason) == (False, "groq", "credential_not_usable")


def test_doubt_counts_as_pending(home: Home) -> None:
    home.lemon("setup", "-n")
    store = home.paths.store_dir
    for path in store.iterdir():
        path.write_bytes(b"no database")
    assert anyio.run(setup_required, home.context)


@pytest.mark.behaviour("lemon_cli.7")
def test_a_key_that_cannot_be_used_is_never_replaced(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_config("")
    key = home.paths.state_dir / "secrets_master_key"
    key.write_text("too short\n")
    assert home.lemon("setup", "-n") == 1
    assert key.read_text() == "too short\n"
    said = capsys.readouterr().out
    assert "restore the file" in said
    assert "Setup is complete" not in said
    assert home.lemon("secrets", "init") == 1
    assert key.read_text() == "too short\n"
    assert home.lemon("secrets", "init", "--force") == 0
    assert key.read_text() != "too short\n"


@pytest.mark.behaviour("lemon_cli.7")
def test_a_key_that_works_stays(home: Home) -> None:
    home.lemon("setup", "-n")
    key = (home.paths.state_dir / "secrets_master_key").read_text()
    home.paths.config_file.unlink()
    assert home.lemon("setup", "-n") == 0 or not state_of(home).provider.complete
    assert (home.paths.state_dir / "secrets_master_key").read_text() == key
    assert home.lemon("secrets", "init") == 1


@pytest.mark.behaviour("lemon_cli.6")
def test_a_failing_live_check_is_no_success(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with vendor() as server:
        home.extra = {"GROQ_BASE_URL": server.base_url, "GROQ_API_KEY": "sk-wrong"}
        assert home.lemon("setup", "-n", "--provider", "groq") == 1
        said = capsys.readouterr()
        assert "refused the credential (HTTP 401)" in said.out
        assert "--skip-verify" in said.out
        assert "Setup is complete" not in said.out
        assert "sk-wrong" not in said.out + said.err
        assert server.requests == [("/v1/models", "sk-wrong")]
        assert home.lemon("setup", "provider", "groq", "-n") == 1
        said = capsys.readouterr()
        assert "refused the credential" in said.err
        assert "complete" not in said.out


@pytest.mark.behaviour("lemon_cli.6")
def test_skip_verify_leaves_out_the_request_only(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    with vendor() as server:
        home.extra = {"GROQ_BASE_URL": server.base_url, "GROQ_API_KEY": "sk-wrong"}
        assert home.lemon("setup", "-n", "--provider", "groq", "--skip-verify") == 0
        assert "Setup is complete." in capsys.readouterr().out
        home.write_config(home.config + '\n[providers.openai]\napi_key_secret = "GONE"\n')
        home.lemon("config", "set", "defaults.provider", "openai")
        capsys.readouterr()
        home.lemon("setup", "-n", "--skip-verify")
        assert "Setup is not complete." in capsys.readouterr().out
        assert server.requests == []


@pytest.mark.behaviour("lemon_cli.6")
def test_lemon_model_makes_no_request(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.lemon("setup", "-n")
    with vendor() as server:
        home.extra = {"GROQ_BASE_URL": server.base_url}
        assert home.lemon("model", "groq", "--token", KEY) == 0
        assert server.requests == []
        assert home.lemon("setup", "provider", "groq", "-n") == 0
        assert server.requests == [("/v1/models", KEY)]
    assert "took the credential and lists 2 models" in capsys.readouterr().out
    assert home.lemon("setup", "provider", "groq", "-n") == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_a_provider_that_cannot_be_asked_says_so(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.extra = {"ANTHROPIC_API_KEY": "sk-a"}
    assert home.lemon("setup", "-n", "--provider", "claude") == 0
    assert "live check not available for anthropic" in capsys.readouterr().out


def test_setup_runtime_prints_and_writes_nothing(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert home.lemon("setup", "runtime", "-n") == 0
    assert capsys.readouterr().out == "export LEMON_RUNTIME_PROFILE=runtime_full\n"
    assert home.lemon("setup", "runtime", "--profile", "runtime_min") == 0
    assert capsys.readouterr().out == "export LEMON_RUNTIME_PROFILE=runtime_min\n"
    assert home.lemon("setup", "runtime", "--profile", "odd") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("# There is no profile 'odd'")
    assert said[1] == "export LEMON_RUNTIME_PROFILE=runtime_full"
    assert home.files() == {}


def test_setup_doctor_is_the_doctor(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    code = home.lemon("doctor", "--json")
    direct = capsys.readouterr().out
    assert home.lemon("setup", "doctor", "--json") == code
    assert capsys.readouterr().out == direct


def test_another_file_can_be_named(home: Home) -> None:
    assert home.lemon("setup", "-n", "--config-path", "other.toml") in (0, 1)
    assert (home.paths.home / "other.toml").is_file()
    assert not home.paths.config_file.exists()
