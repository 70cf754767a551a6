"""`lemon voice`: the keys of the services that a phone call is made of; none is ever printed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from lemon_core.cli.base import command_app, command_context, open_core

if TYPE_CHECKING:
    from lemon_core.commands import CommandContext

app = command_app("Store the keys that phone calls need.")


@app.callback()
def voice() -> None:
    """Store the keys that phone calls need."""
    # With one command alone its word would not be asked for.


@app.command()
def secrets(ctx: typer.Context) -> int:
    """Ask for the keys of Twilio, Deepgram and ElevenLabs, without echo, and store them encrypted.

    An empty answer keeps what is stored. Without a terminal each line of standard input is an
    answer, in the order of the questions.
    """
    import anyio

    from lemon_gateway.voice.keys import SERVICE_KEYS

    given: dict[str, str] = {}
    for name in SERVICE_KEYS:
        if value := _answer(name):
            given[name] = value
    if given:
        anyio.run(_store, command_context(ctx), given)
    print(f"Stored {len(given)} of {len(SERVICE_KEYS)} secrets.")
    return 0


def _answer(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    value: str = typer.prompt(name, default="", show_default=False, hide_input=True, err=True)
    return value.strip()


async def _store(context: CommandContext, values: dict[str, str]) -> None:
    from lemon_core.secrets import SecretsError

    async with open_core(context) as core:
        try:
            for name, value in values.items():
                await core.secrets.set(name, value, provider="voice")
        except SecretsError as exc:
            if exc.code != "missing_master_key":
                raise
            told = f"{exc}: create one with lemon secrets init"
            raise SecretsError(exc.code, told) from exc
