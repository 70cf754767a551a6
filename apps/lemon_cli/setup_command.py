"""`lemon setup`: the first-run journey, and its steps one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lemon_cli.examples import examples
from lemon_cli.model_command import (
    AuthOption,
    ConfigPathOption,
    ModelOption,
    ProviderArgument,
    ProviderOption,
    SecretNameOption,
    SetDefaultOption,
    TokenOption,
    TokenStdinOption,
    request_of,
)
from lemon_core.cli.base import command_context
from lemon_core.cli.doctor import doctor

if TYPE_CHECKING:
    from lemon_core.commands import CommandContext

PROFILES = ("runtime_full", "runtime_min")

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=examples("lemon setup", "lemon setup -n --skip-verify", "lemon setup provider openai"),
)

NonInteractiveOption = Annotated[
    bool, typer.Option("--non-interactive", "-n", help="Ask nothing; take what is given.")
]
SkipVerifyOption = Annotated[
    bool, typer.Option("--skip-verify", help="Do not ask the provider whether it takes the key.")
]


@app.callback(invoke_without_command=True)
def setup(
    ctx: typer.Context,
    non_interactive: NonInteractiveOption = False,
    config_path: ConfigPathOption = None,
    provider: Annotated[
        str | None, typer.Option("--provider", help="Connect this provider, whatever is ready.")
    ] = None,
    skip_verify: SkipVerifyOption = False,
) -> int:
    """Set Lemon up: a configuration file, a master key for secrets, and a model provider.

    What is done stays as it is, so it may be called again. Exits 1 when a step fails.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from lemon_cli.onboarding import Request
    from lemon_cli.provider_view import at_config
    from lemon_cli.setup_wizard import Options, run_setup
    from lemon_cli.ui import Ui

    context = at_config(command_context(ctx), config_path)
    ui = Ui.of(context.environ, interactive=not non_interactive)
    return run_setup(context, ui, Options(Request(provider), skip_verify))


@app.command(
    "provider",
    epilog=examples("lemon setup provider", "lemon setup provider openai --token-stdin < key.txt"),
)
def setup_provider(
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
    non_interactive: NonInteractiveOption = False,
    skip_verify: SkipVerifyOption = False,
) -> int:
    """Connect a model provider, and check that it takes the credential.

    The check asks for the list of models, which costs nothing.
    """
    request = request_of(provider, named, auth, token, token_stdin, secret_name, model, set_default)
    from lemon_cli.provider_view import at_config
    from lemon_cli.setup_wizard import Options, connect
    from lemon_cli.ui import Ui

    context: CommandContext = at_config(command_context(ctx), config_path)
    ui = Ui.of(context.environ, interactive=not non_interactive)
    return connect(context, ui, Options(request, skip_verify))


@app.command("runtime", epilog=examples("lemon setup runtime --profile runtime_min"))
def setup_runtime(
    ctx: typer.Context,
    profile: Annotated[
        str | None, typer.Option("--profile", help=f"One of {', '.join(PROFILES)}.")
    ] = None,
    non_interactive: NonInteractiveOption = False,
) -> int:
    """Choose which parts of Lemon a server runs; prints the lines for your shell's start file.

    Nothing is written.
    """
    from lemon_cli.ui import Ui
    from lemon_core.profiles import PROFILE_VARIABLE

    ui = Ui.of(command_context(ctx).environ, interactive=not non_interactive)
    chosen = profile
    if chosen is not None and chosen not in PROFILES:
        ui.say(f"# There is no profile {chosen!r}; this is the default.")
        chosen = PROFILES[0]
    if chosen is None and ui.interactive:
        notes = ("everything, for a workstation", "no scheduler and no web pages, for a server")
        chosen = PROFILES[ui.choose("Which profile?", PROFILES, notes=notes)]
    ui.say(f"export {PROFILE_VARIABLE}={chosen or PROFILES[0]}")
    return 0


app.command("doctor")(doctor)
