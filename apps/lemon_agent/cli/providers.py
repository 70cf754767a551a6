"""`lemon providers`: who can answer, without a key, a secret's name, a URL or a variable's name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lemon_core.cli.base import command_app, command_context, open_core, print_json, project_dir

if TYPE_CHECKING:
    from lemon_core.commands import CommandContext

app = command_app("Show which model providers are ready.")


@app.command()
def providers(
    ctx: typer.Context,
    provider: Annotated[
        list[str] | None, typer.Option(help="Only this one; may be given more than once.")
    ] = None,
    include_catalog: Annotated[
        bool, typer.Option("--include-catalog", help="Also those that nothing is configured for.")
    ] = False,
    project: Annotated[
        Path | None,
        typer.Option("--project-dir", help="The project whose configuration file counts too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Show which providers are configured, which have a credential, and who would answer."""
    import anyio

    context = command_context(ctx)
    params: dict[str, object] = {"includeCatalog": include_catalog}
    if provider:
        params["providers"] = provider
    found = anyio.run(_snapshot, context, project_dir(context, project), params)
    if as_json:
        print_json(found)
    else:
        print("\n".join(_lines(context, found)))
    return 0


async def _snapshot(
    context: CommandContext, cwd: Path, params: dict[str, object]
) -> dict[str, Any]:
    from lemon_agent.runtime import ModelRuntime
    from lemon_agent.runtime.of_runtime import foreign_urls, settings_of

    async with open_core(context, cwd) as core:
        config, environ = core.loaded.config, core.loaded.environ
        foreign = foreign_urls(config, cwd, context.paths, environ)
        settings = settings_of(config, environ, foreign)
        models = ModelRuntime(settings=lambda: settings, secrets=core.secrets, clock=core.clock)
        async with models:
            return await models.status.snapshot(params)


def _lines(context: CommandContext, found: dict[str, Any]) -> list[str]:
    from lemon_core.cli.marks import columns, tick

    rows = [("PROVIDER", "READY", "CONFIGURED", "KEY FROM")]
    rows += [
        (
            row["provider"] if row["known"] else f"{row['provider']} (unknown)",
            tick(context, row["credentialReady"]),
            "yes" if row["configured"] else "no",
            _where(row),
        )
        for row in found["providers"]
    ]
    routing = found["routing"]
    answers = routing["selectedProvider"] or "none"
    stand_ins = ", ".join(routing["fallbackProviders"])
    return [
        *columns(rows),
        "",
        f"Ready: {found['readyCount']} of {found['count']}. Answers by default: {answers}.",
        *([f"Stand in, in this order: {stand_ins}."] if stand_ins else []),
    ]


def _where(row: dict[str, Any]) -> str:
    """Where the key is looked for, as far as something is set there."""
    config = row["config"]
    places = (
        ("environment", row["ambient"]["envConfigured"]),
        ("configuration", config["apiKeyConfigured"]),
        ("stored secret", config["apiKeySecretConfigured"] or config["oauthSecretConfigured"]),
    )
    named = [place for place, is_set in places if is_set]
    if named:
        return named[0]
    is_keyless = row["provider"] == "local" or config["baseUrlConfigured"]
    return "none needed" if is_keyless else "stored secret" if row["credentialReady"] else "-"
