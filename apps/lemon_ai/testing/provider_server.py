"""The scripted provider as a program, for every wire API.

It prints its origin (`http://host:port`) as the first line and serves until it is told to end:

    python -m lemon_ai.testing.provider_server --script script.json --port 0

where the script is `{"turns": [...], "default": {...}, "models": ["fake-model"]}` with the fields
of `Turn`, and `probes` gives documents of other paths. It is steered over HTTP:
`GET /control/requests`, `POST /control/turns` (a list) and `POST /control/gates/<name>`.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson

from lemon_ai.testing.fake_provider_server import FakeProviderServer
from lemon_ai.testing.script import turn_from_json


async def serve(script: Mapping[str, Any], port: int, announce: Callable[[str], object]) -> None:
    """Serve a script document until SIGTERM or SIGINT; `announce` gets the origin."""
    default = script.get("default")
    server = FakeProviderServer(
        [turn_from_json(turn) for turn in script.get("turns", ())],
        default=None if default is None else turn_from_json(default),
        models=script.get("models", ("fake-model",)),
        api_key=script.get("api_key"),
        port=port,
        keep_requests=script.get("keep_requests", True),
        probes=script.get("probes"),
    )
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with server:
            announce(server.origin)
            async for _ in signals:
                return


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of the module."""
    parser = argparse.ArgumentParser(description="A scripted model provider.")
    parser.add_argument("--script", type=Path, help="a JSON file with turns and a default turn")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    arguments = parser.parse_args(argv)
    script: Mapping[str, Any] = {"default": {"text": "Hello from the scripted model."}}
    if arguments.script is not None:
        script = orjson.loads(arguments.script.read_bytes())
    run: Callable[..., Awaitable[None]] = serve
    anyio.run(run, script, arguments.port, lambda origin: print(origin, flush=True))


if __name__ == "__main__":
    main()
