"""`lemon model`: connect a provider, without asking it anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_cli.examples import examples
from lemon_core.cli.base import command_app, command_context

if TYPE_CHECKING:
    from lemon_cli.onboarding import Request

app = command_app("Connect a model provider.")

ProviderArgument = Annotated[
    str | None, typer.Argument(metavar="PROVIDER", help="Its name, such as anthropic or openai.")
]
ProviderOption = Annotated[
    str | None, typer.Option("--provider", "-p", help="The same as the argument.")
]
AuthOption = Annotated[str | None, typer.Option("--auth", help="oauth or api_key.")]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", help="The API key; --token-stdin keeps it out of the history."),
]
TokenStdinOption = Annotated[
    bool, typer.Option("--token-stdin", help="Read the API key from standard input.")
]
SecretNameOption = Annotated[
    str | None, typer.Option("--secret-name", help="Store it under another name.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="The default model; implies --set-default.")
]
SetDefaultOption = Annotated[
    bool, typer.Option("--set-default", help="Make this provider the default.")
]
ConfigPathOption = Annotated[
    Path | None, typer.Option("--config-path", help="Another file than ~/.lemon/config.toml.")
]


@app.command(
    epilog=examples(
        "lemon model",
        "lemon model openai --token-stdin < key.txt",
        "lemon model claude --set-default",
    )
)
def model(
    ctx: typer.Context,
    provider: ProviderArgument = None,
    named: ProviderOption = None,
    auth: AuthOption = None,
    token: TokenOption = None,
    token_stdin: TokenStdinOption = False,
    secret_name: SecretNameOption = None,
    model: ModelOption = None,
    set_default: SetDefaultOption = False,
    config_path: ConfigPathOption = None,
) -> int:
    """Connect a model provider: store its key encrypted, and name it in the configuration.

    What is not given is asked on a terminal. Nothing is sent to the provider: lemon setup provider
    checks the key too.
    """
    request = request_of(provider, named, auth, token, token_stdin, secret_name, model, set_default)
    from lemon_cli.onboarding import onboard
    from lemon_cli.provider_view import at_config
    from lemon_cli.ui import Ui

    context = at_config(command_context(ctx), config_path)
    onboard(context, Ui.of(context.environ), request)
    return 0


def request_of(
    provider: str | None,
    named: str | None,
    auth: str | None,
    token: str | None,
    token_stdin: bool,
    secret_name: str | None,
    model: str | None,
    set_default: bool,
) -> Request:
    """The options as one request; raises `typer.BadParameter` for those that do not go together."""
    from lemon_cli.onboarding import Request

    if provider is not None and named is not None and provider != named:
        raise typer.BadParameter("name one provider, not two", param_hint="--provider")
    if auth not in (None, "oauth", "api_key"):
        raise typer.BadParameter("use oauth or api_key", param_hint="--auth")
    if token is not None and token_stdin:
        raise typer.BadParameter("give the key once: --token or --token-stdin")
    if auth == "oauth" and (token is not None or token_stdin):
        raise typer.BadParameter("a token is an API key", param_hint="--auth oauth")
    given = sys.stdin.readline().strip() if token_stdin else token
    return Request(provider or named, auth, given, secret_name, model, set_default)
