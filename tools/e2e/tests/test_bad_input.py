"""Each kind of bad input ends with one clear line, the right code, and nothing left behind."""

from __future__ import annotations

import signal
import socket

import anyio
import pytest

from lemon_core.clock import SystemClock
from lemon_core.state_lock import hold_state_lock
from tools.e2e.tests.stack import SERVER, Ended, Home, model_server, user

pytestmark = pytest.mark.anyio


async def serve(home: Home) -> Ended:
    """The server, which is expected to end by itself."""
    async with home.start(SERVER) as program:
        return await program.wait()


async def configure(home: Home, text: str) -> None:
    await anyio.Path(home.paths.state_dir).mkdir(exist_ok=True)
    await anyio.Path(home.paths.config_file).write_text(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gateway\n", ":1"),
        ("[gateway]\nmax_concurrent_runs = 0\n", "gateway.max_concurrent_runs"),
        ('[gateway]\nengine = "codex"\n', "gateway.engine"),
        ('[gateway.engines.codex]\ncommand = "codex"\n', "gateway.engines"),
        ('[gateway.rpc]\nlisten = "127.0.0.1:0"\nauth = "none"\n', "gateway.rpc.auth"),
    ],
)
async def test_a_broken_configuration_stops_the_server(text: str, words: str) -> None:
    async with user() as home:
        await configure(home, text)
        for ended in (await serve(home), await home.lemon("run", "--session", "w", "hi")):
            assert ended.code == 1
            assert ended.out == ""
            (line,) = ended.err.splitlines()
            assert str(home.paths.config_file) in line
            assert words in line
        assert not home.paths.store_dir.exists()


async def test_an_unknown_key_only_warns_and_a_project_gets_no_power() -> None:
    async with user() as home:
        await configure(home, "[gateway]\nmax_runs = 2\n")
        project = anyio.Path(home.work / ".lemon")
        await project.mkdir()
        await (project / "config.toml").write_text(
            '[providers.openai]\nbase_url = "http://127.0.0.1:9/v1"\napi_key = "stolen"\n'
        )
        async with model_server({"default": {"text": "Fine."}}, home.paths.home) as base_url:
            environ = {**home.environ, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": base_url}
            ended = await Home(home.paths, environ).lemon("run", "--session", "w", "hi")
        assert (ended.code, ended.out) == (0, "Fine.")
        assert "gateway.max_runs" in ended.err
        assert "providers.openai.base_url" in ended.err
        assert "stolen" not in ended.err


async def test_a_taken_health_port_is_named() -> None:
    async with user() as home:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            environ = {**home.environ, "LEMON_GATEWAY_HEALTH_PORT": port}
            ended = await serve(Home(home.paths, environ))
        assert ended.code == 1
        assert port in ended.err
        assert "health_port" in ended.err
        assert not home.paths.gateway_socket.exists()


async def test_a_dead_servers_socket_is_taken_over_and_a_live_one_is_not() -> None:
    async with user() as home:
        async with home.server() as first:
            first.signal(signal.SIGKILL)
            await first.wait()
        assert home.paths.router_socket.exists()
        async with home.server():
            second = await serve(home)
            assert second.code == 0
            assert "running already" in second.out


async def test_a_socket_that_somebody_else_listens_on_is_left_alone() -> None:
    async with user() as home:
        home.paths.run_dir.mkdir(parents=True, mode=0o700)
        with socket.socket(socket.AF_UNIX) as foreign:
            foreign.bind(str(home.paths.router_socket))
            foreign.listen()
            ended = await serve(home)
        assert ended.code == 1
        assert str(home.paths.router_socket) in ended.err


async def test_a_server_waits_for_a_one_shot_command() -> None:
    async with (
        user() as home,
        hold_state_lock(home.paths.runtime_lock, "one_shot", SystemClock()),
        home.start(SERVER) as program,
    ):
        await program.wait_for("waiting")


@pytest.mark.parametrize(("model", "code"), [("nobody:nothing", 2), ("openai:does-not-exist", 2)])
async def test_an_unknown_model_is_a_usage_error(model: str, code: int) -> None:
    async with user() as home:
        ended = await home.lemon("run", "--session", "w", "--model", model, "hi")
        assert ended.code == code
        assert model.partition(":")[2] in ended.err or model in ended.err
        assert ended.out == ""


async def test_no_network_is_one_clear_line() -> None:
    async with user() as home:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
            environ = {**home.environ, "OPENAI_API_KEY": "secret-key", "OPENAI_BASE_URL": url}
            me = Home(home.paths, environ)
            ended = await me.lemon("run", "--session", "w", "--model", "openai:x", "hi")
        assert ended.code == 1
        assert "secret-key" not in ended.err
        assert "127.0.0.1" in ended.err or "connect" in ended.err.lower()
        assert "Traceback" not in ended.err
