"""The scripted chat-completions server as a program.

It prints its base URL as the first line and serves until it is told to end:

    python -m lemon_ai.testing.chat_server --script script.json --port 0

where the script is `{"turns": [...], "default": {...}, "models": ["fake-model"]}` with the fields
of `Turn`. It is steered over HTTP: `GET /control/requests`, `POST /control/turns` (a list) and
`POST /control/gates/<name>`.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson

from lemon_ai.testing.fake_chat_server import FakeChatServer
from lemon_ai.testing.script import turn_from_json


async def serve(script: Mapping[str, Any], port: int, announce: Callable[[str], object]) -> None:
    """Serve a script document until SIGTERM or SIGINT; `announce` gets the base URL."""
    default = script.get("default")
    server = FakeChatServer(
        [turn_from_json(turn) for turn in script.get("turns", ())],
        default=None if default is None else turn_from_json(default),
        models=script.get("models", ("fake-model",)),
        api_key=script.get("api_key"),
        port=port,
        keep_requests=script.get("keep_requests", True),
    )
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with server:
            announce(server.base_url)
            async for _ in signals:
                return


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of the module."""
    parser = argparse.ArgumentParser(description="A scripted chat-completions server.")
    parser.add_argument("--script", type=Path, help="a JSON file with turns and a default turn")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    arguments = parser.parse_args(argv)
    script: Mapping[str, Any] = {"default": {"text": "Hello from the scripted model."}}
    if arguments.script is not None:
        script = orjson.loads(arguments.script.read_bytes())
    run: Callable[..., Awaitable[None]] = serve
    anyio.run(run, script, arguments.port, lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
