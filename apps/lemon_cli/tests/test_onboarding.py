"""Connecting a provider (specification lemon_cli 4, 10.8 to 10.10)."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from lemon_ai.oauth import OAuthProviderConfig
from lemon_cli import onboarding, sign_in
from lemon_cli.onboarding import Request, onboard
from lemon_cli.tests.home import Home
from lemon_cli.tests.terminal import terminal
from lemon_cli.ui import Ui

KEY = "sk-planted-0123456789"


@pytest.fixture
def ready(home: Home, capsys: pytest.CaptureFixture[str]) -> Home:
    """A home that is set up but for a provider."""
    home.lemon("setup", "-n")
    capsys.readouterr()
    return home


@pytest.mark.behaviour("lemon_cli.8")
def test_the_file_gets_the_reference_and_the_store_the_value(
    ready: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ready.config
    assert ready.lemon("model", "claude", "--token", KEY) == 0
    said = capsys.readouterr()
    assert KEY not in said.out + said.err
    assert all(KEY.encode() not in content for content in ready.files().values())
    assert ready.secret("llm_anthropic_api_key_raw") == KEY
    assert ready.config.startswith(before.rstrip())
    added = ready.config[len(before.rstrip()) :]
    assert 'api_key_secret = "llm_anthropic_api_key_raw"' in added
    assert 'auth_source = "api_key"' in added
    assert "provider =" not in added


@pytest.mark.behaviour("lemon_cli.8")
def test_comments_and_unknown_keys_survive(ready: Home) -> None:
    ready.write_config("# mine\n[odd]\nkey = 1 # kept\n\n[providers.groq] # here\nodd = true\n")
    assert ready.lemon("model", "groq", "--token", KEY) == 0
    assert "# mine\n[odd]\nkey = 1 # kept\n" in ready.config
    assert "[providers.groq] # here" in ready.config
    assert "odd = true" in ready.config
    assert 'api_key_secret = "llm_groq_api_key"' in ready.config


@pytest.mark.behaviour("lemon_cli.8")
def test_broken_toml_is_left_untouched(ready: Home, capsys: pytest.CaptureFixture[str]) -> None:
    ready.write_config("[defaults\n")
    assert ready.lemon("model", "groq", "--token", KEY) == 1
    assert "line 1" in capsys.readouterr().err
    assert ready.config == "[defaults\n"
    assert ready.lemon("secrets", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("word", "canonical"), [("claude", "anthropic"), ("CODEX", "openai-codex"), ("z-ai", "zai")]
)
@pytest.mark.behaviour("lemon_cli.9")
def test_an_alias_finds_its_provider(ready: Home, word: str, canonical: str) -> None:
    assert ready.lemon("model", word, "--token", KEY) == 0
    assert f"[providers.{canonical}]" in ready.config


@pytest.mark.behaviour("lemon_cli.9")
def test_an_unknown_model_lists_the_known_ones(
    ready: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ready.files()
    assert ready.lemon("model", "anthropic", "--token", KEY, "--model", "gpt-none") == 2
    said = capsys.readouterr().err
    assert "has no model 'gpt-none'; it has: claude" in said
    assert ready.files() == before


def test_set_default_writes_provider_and_model(ready: Home) -> None:
    assert ready.lemon("model", "openai", "--token", KEY, "--set-default") == 0
    assert 'provider = "openai"' in ready.config
    assert 'model = "openai:' in ready.config
    assert ready.lemon("model", "groq", "--token", KEY, "--model", "groq:nothing") == 2
    assert ready.lemon("config", "validate") == 0


def test_the_token_comes_from_stdin(ready: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{KEY}\n"))
    assert ready.lemon("model", "xai", "--token-stdin", "--secret-name", "mine") == 0
    assert ready.secret("mine") == KEY
    assert 'api_key_secret = "mine"' in ready.config


def test_a_key_that_is_stored_or_set_need_not_be_given(
    ready: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ready.lemon("model", "groq") == 1
    assert "--token-stdin" in capsys.readouterr().err
    ready.extra = {"GROQ_API_KEY": KEY}
    assert ready.lemon("model", "groq") == 0
    assert "GROQ_API_KEY is set" in capsys.readouterr().out
    ready.extra = {}
    assert ready.secret("llm_groq_api_key") == KEY
    assert ready.lemon("model", "groq", "--set-default") == 0


@pytest.mark.parametrize(
    "argv",
    [
        ("nobody",),
        (),
        ("openai", "--provider", "groq"),
        ("openai", "--auth", "password"),
        ("openai", "--auth", "oauth", "--token", "x"),
        ("openai", "--auth", "oauth"),
        ("openai", "--token", "x", "--token-stdin"),
        ("openai", "--token", "two words"),
    ],
)
def test_wrong_arguments_end_2(
    ready: Home, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    before = ready.files()
    assert ready.lemon("model", *argv) == 2
    assert capsys.readouterr().err
    assert ready.files() == before


def test_without_a_master_key_nothing_is_stored(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert home.lemon("model", "groq", "--token", KEY) == 1
    assert "lemon secrets init" in capsys.readouterr().err
    assert not home.paths.config_file.exists()


def test_a_server_on_this_machine_needs_no_key(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert home.lemon("model", "ollama") == 0
    assert 'base_url = "http://127.0.0.1:11434/v1"' in home.config


# -- signing in with the browser ---------------------------------------------------------------


@contextmanager
def oauth_server() -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """A token endpoint that takes the code `good`; its URL, and the bodies that came."""
    bodies: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["content-length"])).decode()
            bodies.append(parse_qs(text))
            ok = bodies[-1].get("code") == ["good"]
            answer: object = {"access_token": "at-planted"} if ok else {"error": "invalid_grant"}
            body = json.dumps(answer).encode()
            self.send_response(200 if ok else 400)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", bodies
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def codex(token_url: str, port: int) -> OAuthProviderConfig:
    return OAuthProviderConfig(
        id="openai_codex",
        authorize_url="https://sign-in.example/authorize",
        token_url=token_url,
        client_id="lemon",
        redirect_uri=f"http://localhost:{port}/auth/callback",
    )


class Scripted(Ui):
    """A person who answers from a list."""

    def __init__(self, *answers: str) -> None:
        super().__init__(interactive=True)
        self.answers, self.said = list(answers), ""

    def say(self, text: str = "") -> None:
        self.said += f"{text}\n"

    def _line(self, prompt: str, *, hidden: bool = False) -> str:
        self.say(prompt)
        return self.answers.pop(0)


class Browser:
    """Opens the page, and comes back with a code."""

    def __init__(self, code: str, *, follows: bool = True) -> None:
        self.code, self.follows = code, follows
        self.url, self.pages, self.threads = "", list[int](), list[threading.Thread]()

    def __call__(self, url: str) -> None:
        self.url = url
        if self.follows:
            self.threads.append(threading.Thread(target=self._come_back))
            self.threads[-1].start()

    def answer(self) -> str:
        query = parse_qs(urlsplit(self.url).query)
        return f"{query['redirect_uri'][0]}?code={self.code}&state={query['state'][0]}"

    def _come_back(self) -> None:
        from urllib.error import URLError

        for _ in range(200):
            try:
                with urllib.request.urlopen(self.answer(), timeout=10) as page:
                    self.pages.append(page.status)
                    return
            except URLError:
                threading.Event().wait(0.05)  # the listener is not open yet


SignIn = Callable[..., str]


def through(monkeypatch: pytest.MonkeyPatch, browser: Browser) -> None:
    real: SignIn = sign_in.sign_in

    def opened(ui: Ui, provider: OAuthProviderConfig, environ: dict[str, str]) -> str:
        return real(ui, provider, environ, open_url=browser)

    async def nobody(scope: object) -> None:
        """The terminal of the test runner is no terminal."""

    monkeypatch.setattr(onboarding, "sign_in", opened)
    monkeypatch.setattr(sign_in, "_until_enter", nobody)


@pytest.mark.behaviour("lemon_cli.8")
@pytest.mark.behaviour("lemon_cli.10")
def test_the_browser_comes_back_with_the_code(ready: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a key to OAuth: the listener takes one code and its port is free again."""
    assert ready.lemon("model", "codex", "--token", KEY) == 0
    assert "api_key_secret" in ready.config.split("[providers.openai-codex]")[1]
    browser, port = Browser("good"), free_port()
    through(monkeypatch, browser)
    with oauth_server() as (url, bodies):
        ui = Scripted("n")
        onboard(
            ready.context,
            ui,
            Request("codex", auth="oauth"),
            oauth_providers={"openai_codex": codex(url, port)},
        )
    for thread in browser.threads:
        thread.join(10)
    assert browser.pages == [200]
    assert [body["code"] for body in bodies] == [["good"]]
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    block = ready.config.split("[providers.openai-codex]")[1]
    assert 'oauth_secret = "llm_openai_codex_api_key"' in block
    assert 'auth_source = "oauth"' in block
    assert "api_key_secret" not in block
    assert json.loads(ready.secret("llm_openai_codex_api_key"))["access_token"] == "at-planted"
    assert "at-planted" not in ui.said
    assert browser.url in ui.said


@pytest.mark.behaviour("lemon_cli.10")
def test_with_the_port_taken_the_answer_is_pasted(
    ready: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        browser = Browser("good", follows=False)
        through(monkeypatch, browser)
        with oauth_server() as (url, bodies):
            ui = Pasting(browser)
            onboard(
                ready.context,
                ui,
                Request("codex", auth="oauth"),
                oauth_providers={"openai_codex": codex(url, port)},
            )
    assert f"port {port} on 127.0.0.1 is taken" in ui.said
    assert [body["code"] for body in bodies] == [["good"]]
    assert 'auth_source = "oauth"' in ready.config


class Pasting(Scripted):
    """Pastes what the browser ended at, then says no to the default."""

    def __init__(self, browser: Browser) -> None:
        super().__init__("n")
        self.browser = browser

    def _line(self, prompt: str, *, hidden: bool = False) -> str:
        if hidden:
            self.say(prompt)
            return self.browser.answer()
        return super()._line(prompt)


@pytest.mark.behaviour("lemon_cli.10")
def test_enter_ends_the_wait_for_the_browser(home: Home) -> None:
    """Over SSH the browser is elsewhere: its answer is pasted, unseen."""
    code = """
import sys
from lemon_ai.oauth import OAuthProviderConfig
from lemon_cli.sign_in import sign_in
from lemon_cli.ui import Ui
row = OAuthProviderConfig(id="openai_codex", authorize_url="https://sign-in.example/authorize",
    token_url=sys.argv[1], client_id="lemon", redirect_uri=f"http://localhost:{sys.argv[2]}/cb")
print("done", len(sign_in(Ui.of({}), row, {}, open_url=lambda url: None)) > 20)
"""
    with (
        oauth_server() as (url, bodies),
        terminal(code, url, str(free_port()), environ=home.environ) as screen,
    ):
        screen.answer("(Enter: paste the answer by hand)", "")
        screen.answer("Address or code (hidden):", "good")
        assert screen.end() == 0
        assert "done True" in screen.text
    assert [body["code"] for body in bodies] == [["good"]]


def test_a_refused_code_changes_nothing(ready: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    from lemon_ai.oauth import OAuthError

    browser, before = Browser("bad"), ready.files()
    through(monkeypatch, browser)
    with oauth_server() as (url, _), pytest.raises(OAuthError, match="invalid_grant"):
        onboard(
            ready.context,
            Scripted(),
            Request("codex", auth="oauth"),
            oauth_providers={"openai_codex": codex(url, free_port())},
        )
    assert ready.files() == before
